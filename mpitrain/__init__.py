"""mpitrain: distributed SGD over MPI with the algorithms of five papers (README.md names them).

`mpitrain.train`, `mpitrain.load` and `mpitrain.distribute` are for programs and notebooks; the command line is
`python -m mpitrain`.
"""

from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from mpitrain.start import prepare_cache

if TYPE_CHECKING:
    from mpitrain.api.loop import distribute as distribute
    from mpitrain.api.python import Trained as Trained
    from mpitrain.api.python import load as load
    from mpitrain.api.python import train as train

__version__ = "0.1.0"

# Installed, mpitrain.kernels lies in this folder; in a checkout it is the folder kernels/ beside it.
if not Path(__file__).with_name("kernels").is_dir():
    __path__.append(str(Path(__file__).resolve().parent.parent))

prepare_cache()  # before anything loads Numba


def __getattr__(name: str) -> object:
    """Import a function of the Python interface when it is used: the command line needs none of them. MPI is started,
    so that the rest of a user's program can call it."""
    places = {"distribute": "api.loop", **dict.fromkeys(("Trained", "load", "train"), "api.python")}
    if name not in places:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    resolve_name("mpitrain.mpi.process:PROCESS").start()
    return resolve_name(f"mpitrain.{places[name]}:{name}")
