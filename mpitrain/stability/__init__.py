"""Stability of EASGD and ADMM in the round-robin scheme: `python -m mpitrain stability`. Exact, needs no data."""

from mpitrain.stability.command import add_parser, run

__all__ = ["add_parser", "run"]
