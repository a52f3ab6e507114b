"""Models: what is trained, as functions of one flat vector.

`model` says what the rest of the program knows of a model; `network` is one of layers, which are in `layers`, made of a
configuration's list (`design`) or a paper's (`presets`); `torch` has modules of PyTorch's.
"""
