"""The commands `train`, `info`, `describe` and `jobs`: setting up a training, running it, and writing its results."""
