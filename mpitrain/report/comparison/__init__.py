"""Comparisons: a matrix of configurations, workers and seeds, run and put into a table."""
