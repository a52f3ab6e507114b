"""The commands `train` and `info`: setting up a training, running it, and writing its results."""
