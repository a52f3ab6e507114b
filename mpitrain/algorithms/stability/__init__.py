"""Stability of EASGD and ADMM in the round-robin scheme: `python -m mpitrain stability`. Exact, needs no data."""
