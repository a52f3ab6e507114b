"""Benchmarks that tell methods apart: a configuration each, and how its data are made, for `compare --on`."""
