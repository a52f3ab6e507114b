"""Samples per second of `allreduce` and `sparse-delta` on the network of benchmarks/scaling, one line each.

mpirun -n 2 python benchmarks/sparse/rates.py [ALLREDUCE_MINIBATCHES] [SPARSE_MINIBATCHES]

Minibatches are a rank's. Each algorithm first trains a tenth as long, unmeasured. `sparse-delta` sends 0.1 % of the
elements, packed: a thousandth of the bytes that `allreduce` sums.
"""

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scaling"))
from launch import require_ranks
from workload import MINIBATCH, session

from mpitrain.mpi import Transport
from mpitrain.protocols import PROTOCOLS

SETTINGS = {
    "allreduce": ("algorithm.name=allreduce", "algorithm.momentum=0"),
    "sparse-delta": ("algorithm.name=sparse-delta", "algorithm.target_density=0.001"),
}


def rate(transport: Transport, settings: tuple[str, ...], minibatches: int) -> tuple[float, dict[str, Any]]:
    """Samples per second of all ranks together, and what the protocol counted."""
    ours = session(transport, minibatches * transport.size, *settings)
    transport.barrier("the others")
    began = time.perf_counter()
    PROTOCOLS[ours.config.algorithm.protocol](ours)
    seconds = np.array([time.perf_counter() - began])
    transport.wait(transport.start_maximum(seconds), "the others")
    return minibatches * transport.size * MINIBATCH / float(seconds[0]), ours.counters.summary()


def main(counts: dict[str, int]) -> None:
    """Measure both."""
    require_ranks(2, or_more=True)
    transport = Transport()
    for name, minibatches in counts.items():
        rate(transport, SETTINGS[name], max(minibatches // 10, 1))
        found, counted = rate(transport, SETTINGS[name], minibatches)
        if transport.rank == 0:
            ratio = counted.get("compression_ratio")
            print(f"{name} {found:.0f} samples/s" + (f" at {ratio:.0f}x fewer bytes" if ratio else ""), flush=True)
    transport.leave()


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:]] + [20, 100][len(sys.argv) - 1 :]
    with threadpool_limits(1):
        main(dict(zip(SETTINGS, numbers, strict=True)))
