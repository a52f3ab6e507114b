"""Models: what is trained, as functions of one flat vector.

`model` is the interface that the rest of the program uses; `network` implements it with the layers in `layers`, from a
configuration's list (`design`) or a paper's (`presets`); `torch` implements it with PyTorch modules.
"""
