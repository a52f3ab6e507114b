"""How to push a nonblocking collective on during a long matrix product: calls between its blocks, or a thread.

    OPENBLAS_NUM_THREADS=1 mpirun -n 2 python benchmarks/hybrid/progress.py [MEGABYTES] [REPEATS]

Each rank multiplies for about 60 ms while a broadcast is under way. Reported: the product's time (more than alone: what
pushing costs), the wait that is left after it, their sum; medians.
"""

import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import mpi4py
import numpy as np
from threadpoolctl import threadpool_limits

mpi4py.rc.thread_level = "multiple"  # the program itself runs "funneled"

from mpi4py import MPI  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from launch import require_ranks  # noqa: E402

BLOCKS = (6, 12, 32)
COMM = MPI.COMM_WORLD


class Pusher(threading.Thread):
    """Calls Test every `pause` seconds while a request is set."""

    def __init__(self, pause: float) -> None:
        super().__init__(daemon=True)
        self.pause, self.request, self.going = pause, None, True

    def run(self) -> None:
        """Until `going` is taken away."""
        while self.going:
            if self.request is not None and self.request.Test():
                self.request = None
            time.sleep(self.pause)


def measure(
    product: Callable[[MPI.Request | None], None], message: np.ndarray | None, repeats: int
) -> tuple[float, float]:
    """Median seconds of the product and of the wait left after it."""
    computing, waiting = [], []
    for _ in range(repeats):
        COMM.Barrier()
        began = time.perf_counter()
        request = COMM.Ibcast(message, 0) if message is not None else None
        product(request)
        done = time.perf_counter()
        while request is not None and not request.Test():
            pass
        computing.append(done - began)
        waiting.append(time.perf_counter() - done)
    return statistics.median(computing), statistics.median(waiting)


def main(megabytes: float = 4.0, repeats: float = 15) -> None:
    """Print one line a way."""
    require_ranks(2, or_more=True)
    a, b = np.ones((1536, 1024), np.float32), np.ones((1024, 1024), np.float32)
    out, message = np.empty((1536, 1024), np.float32), np.zeros(int(megabytes * 1e6), np.uint8)

    def whole(request: MPI.Request | None) -> None:
        np.matmul(a, b, out=out)

    def blocks(count: int) -> Callable[[MPI.Request | None], None]:
        def product(request: MPI.Request | None) -> None:
            rows = len(a) // count
            for start in range(0, len(a), rows):
                np.matmul(a[start : start + rows], b, out=out[start : start + rows])
                if request is not None:
                    request.Test()

        return product

    thread = Pusher(2e-4)

    def threaded(request: MPI.Request | None) -> None:
        thread.request = request
        np.matmul(a, b, out=out)
        while thread.request is not None:
            time.sleep(1e-4)

    ways = {
        "no message": (whole, None),
        "nothing": (whole, message),
        **{f"{count} blocks": (blocks(count), message) for count in BLOCKS},
        "thread": (threaded, message),
    }
    thread.start()
    for name, (product, sent) in ways.items():
        measure(product, sent, int(repeats))
        computing, waiting = measure(product, sent, int(repeats))
        if COMM.rank == COMM.size - 1:
            total = computing + waiting
            print(
                f"{name:22} product {computing * 1e3:6.1f} ms  left {waiting * 1e3:6.1f} ms  sum {total * 1e3:6.1f} ms"
            )
    thread.going = False


if __name__ == "__main__":
    with threadpool_limits(1):
        main(*map(float, sys.argv[1:]))
