"""Comparisons: a matrix of configurations, workers and seeds, run and put into a table."""

from mpitrain.comparison.command import add_parser

__all__ = ["add_parser"]
