"""How fast one worker pulls Θ while the server computes, against a memory copy in the same run.

mpirun -n 2 python benchmarks/pull/pull.py [ELEMENTS]

Rank 0 holds Θ and multiplies matrices without entering MPI; rank 1 pulls by the sequence lock and copies, in turns.
"""

import statistics
import sys
import time

import numpy as np
from threadpoolctl import threadpool_limits

from mpitrain.mpi import Transport
from mpitrain.protocols.centre import open_centre

ROUNDS = 41


def main(size: int) -> None:
    """Print GB/s of the copy and of every way to pull that needs no server time."""
    transport = Transport()
    for how in ("shared", "one-sided"):
        centre = open_centre(transport, how, size, np.dtype(np.float32), master=0)
        if transport.rank == 0:
            with centre.writing(1):
                centre.theta[:] = 1
        transport.barrier("the start")
        if transport.rank == 0:
            _compute(6.0)
        else:
            pulls, copies = _measure(centre, size)
            print(
                f"{how:10} pull {4e-9 * size / pulls:6.2f} GB/s   copy {4e-9 * size / copies:6.2f} GB/s   "
                f"ratio {copies / pulls:.2f}  ({size:,} float32, medians of {ROUNDS})",
                flush=True,
            )
        transport.barrier("the end")
        centre.close()


def _compute(seconds: float) -> None:
    """Matrix products, no MPI."""
    a = np.ones((1024, 1024), np.float32)
    out, end = np.empty_like(a), time.perf_counter() + seconds
    while time.perf_counter() < end:
        np.matmul(a, a, out=out)


def _measure(centre, size: int) -> tuple[float, float]:
    out, source, target = (np.full(size, k, np.float32) for k in (2, 3, 4))  # written: no page is shared
    pulls, copies = [], []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        assert centre.read(out) == 1
        middle = time.perf_counter()
        np.copyto(target, source)
        pulls.append(middle - began)
        copies.append(time.perf_counter() - middle)
    assert (out == 1).all()
    return statistics.median(pulls), statistics.median(copies)


if __name__ == "__main__":
    with threadpool_limits(1):
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 14_600_000)
