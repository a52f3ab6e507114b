"""Modules of PyTorch's as models. Nothing here but `start` may be imported before PyTorch is known to be installed."""
