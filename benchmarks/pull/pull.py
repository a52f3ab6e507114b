"""How fast one worker pulls Θ while the server computes, against a memory copy in the same run.

mpirun -n 2 python benchmarks/pull/pull.py [ELEMENTS] [SECONDS]
python benchmarks/twohosts/twohosts.py --rate none python benchmarks/pull/pull.py [ELEMENTS] [SECONDS]

Rank 0 holds Θ; rank 1 pulls and copies, in turns. Shared memory, and one-sided reads on one node, need nothing of rank
0: it multiplies matrices for SECONDS and never enters MPI. Elsewhere it waits as a server does, in MPI every two
milliseconds or more often, and answers who asks for Θ by message.
"""

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from mpitrain.mpi import Transport
from mpitrain.protocols.server.versioned import open_memory

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from launch import require_ranks

ROUNDS, ROUNDS_ASKED = 41, 11
ASK, VECTOR, DONE = 1, 2, 3  # message tags


def main(size: int = 14_600_000, seconds: int = 6) -> None:
    """Print GB/s of the copy and of every way to pull that these ranks' places allow."""
    require_ranks(2)
    transport = Transport()
    one_node = transport.nodes == 1
    for how in ("shared", "one-sided", "messages") if one_node else ("one-sided", "messages"):
        alone = one_node and how != "messages"
        centre = open_memory(transport, how, size, np.dtype(np.float32), master=0)
        if transport.rank == 0:
            with centre.writing(1):
                centre.theta[:] = 1
        transport.barrier("the start")
        if transport.rank == 0:
            _serve(transport, centre.theta, seconds if alone else 0)
        else:
            pull = centre.read if how != "messages" else partial(_ask, transport)
            rounds = ROUNDS if alone else ROUNDS_ASKED
            pulls, copies = _measure(pull, size, rounds)
            if not alone:
                transport.post(0, DONE, b"")
            place = "one node" if one_node else "two nodes"
            print(
                f"{how:10} {place:9} pull {4e-9 * size / pulls:6.2f} GB/s   copy {4e-9 * size / copies:6.2f} GB/s   "
                f"ratio {copies / pulls:.2f}  ({size:,} float32, medians of {rounds})",
                flush=True,
            )
        transport.flush()
        transport.barrier("the end")
        centre.close()
    transport.leave()


def _serve(transport: Transport, theta: np.ndarray, alone: int) -> None:
    """Matrix products without MPI for so many seconds, or the loop of a server that waits for somebody to ask for Θ."""
    if alone:
        a = np.ones((1024, 1024), np.float32)
        out, end = np.empty_like(a), time.perf_counter() + alone
        while time.perf_counter() < end:
            np.matmul(a, a, out=out)
        return

    def serve() -> bool:
        asked = transport.poll(ASK) is not None
        if asked:
            transport.wait(transport.send(1, VECTOR, theta), "Θ to leave")
        return asked

    transport.until(lambda: transport.poll(DONE) is not None, "the end of the pulls", serve=serve)


def _ask(transport: Transport, out: np.ndarray) -> int:
    """Θ by message."""
    transport.post(0, ASK, b"")
    transport.receive_into(0, VECTOR, out, "Θ")
    return 1


def _measure(pull: Callable[[np.ndarray], int | None], size: int, rounds: int) -> tuple[float, float]:
    out, source, target = (np.full(size, k, np.float32) for k in (2, 3, 4))  # written: no page is shared
    pulls, copies = [], []
    for _ in range(rounds):
        began = time.perf_counter()
        assert pull(out) == 1
        middle = time.perf_counter()
        np.copyto(target, source)
        pulls.append(middle - began)
        copies.append(time.perf_counter() - middle)
    assert (out == 1).all()
    return statistics.median(pulls), statistics.median(copies)


if __name__ == "__main__":
    with threadpool_limits(1):
        main(*map(int, sys.argv[1:]))
