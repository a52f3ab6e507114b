"""mpitrain: distributed SGD over MPI with the algorithms of five papers (README.md names them)."""

__version__ = "0.1.0"
