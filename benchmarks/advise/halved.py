"""The program, with a last rank that computes half as fast: whenever it has computed, it sleeps for as long as that
took, of `hybrid` in the middle of its exchanges, too."""

import sys
import time
from typing import Any

from mpi4py import MPI

from mpitrain.__main__ import main
from mpitrain.stopwatch import _Counting


def slowed(plain: Any) -> Any:
    """The end of a stretch of time that counts, after which what is not slept yet of "computing" is slept."""
    slept = 0.0

    def end(self: _Counting, *error: Any) -> Any:
        nonlocal slept
        done = plain(self, *error)
        if self._kind == "computing":
            computed = self._stopwatch.read()["computing"]
            time.sleep(max(computed - slept, 0))
            slept = max(slept, computed)
        return done

    return end


if __name__ == "__main__":
    if MPI.COMM_WORLD.rank == MPI.COMM_WORLD.size - 1:
        _Counting.__exit__ = slowed(_Counting.__exit__)  # type: ignore[method-assign]
    sys.exit(main())
