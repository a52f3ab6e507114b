"""Models: what is trained, as functions of one flat vector.

`model` says what the rest of the program knows of a model, `network` is one of layers, `table` holds the layers that a
configuration can list, `presets` the papers' lists, and `build` makes networks of lists. The package itself imports
none of them, so that reading a configuration, which knows the table, loads neither Numba nor layers.
"""
