"""mpitrain: distributed SGD over MPI with the algorithms of five papers (README.md names them)."""

from pathlib import Path

__version__ = "0.1.0"

# Installed, mpitrain.kernels lies in this folder; in a checkout it is the folder kernels/ beside it.
if not Path(__file__).with_name("kernels").is_dir():
    __path__.append(str(Path(__file__).resolve().parent.parent))
