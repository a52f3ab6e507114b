"""Samples per second of distributed algorithms against independent `sgd` processes, alternating in one run.

mpirun -n 3 python benchmarks/scaling/scaling.py [ROUNDS] [MINIBATCHES] [ALGORITHM ...]

Ranks 1 and 2 each train `sgd` on their own at the same time; then rank 0 serves the two as workers of `asgd` (n = 3),
then they are workers of `easgd` (τ = 10); then they are two peers of `sparse-delta` (0.1 % of the elements sent), while
rank 0 does nothing. A ratio is of the sums of samples per second; the median over the rounds counts.
"""

import statistics
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
from mpi4py import MPI
from threadpoolctl import threadpool_limits
from workload import MINIBATCH, session

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from launch import require_ranks

from mpitrain import config as configuration
from mpitrain.mpi import Transport
from mpitrain.protocols import PROTOCOLS

DISTRIBUTED = {
    "asgd": ("algorithm.preset=zhang2013",),
    "easgd": ("algorithm.name=easgd", "algorithm.tau=10"),
    "sparse-delta": ("algorithm.name=sparse-delta", "algorithm.target_density=0.001"),
}


def main(rounds: int = 5, minibatches: int = 240, *names: str) -> None:
    """Print one line a round and the medians."""
    require_ranks(3)
    transport, alone = Transport(), Transport(MPI.COMM_SELF)
    transport.local_size = 1
    pair = Transport(transport.comm.Split(int(transport.rank == 0)))  # the two workers
    ratios: dict[str, list[float]] = {name: [] for name in names or DISTRIBUTED}
    for number in range(rounds + 1):
        independent = timed(transport, lambda: sgd(transport, alone, minibatches // 2), minibatches)
        line = f"2 x sgd {independent:7.0f} samples/s"
        for name in ratios:
            settings = DISTRIBUTED[name]
            rate = timed(transport, partial(distributed, transport, pair, minibatches, settings), minibatches)
            line += f"   {name} {rate:7.0f}, ratio {rate / independent:.3f}"
            if number:  # the first round warms up
                ratios[name].append(rate / independent)
        if number and transport.rank == 0:
            print(line, flush=True)
    if transport.rank == 0:
        for name, each in ratios.items():
            print(f"{name}: median ratio {statistics.median(each):.3f} over {rounds} rounds")
    pair.leave()
    transport.leave()


def timed(transport: Transport, action, minibatches: int) -> float:
    """Samples per second of all ranks together, from a common start to the last rank's end."""
    run = action()  # builds; what it returns trains
    transport.barrier("the others")
    began = time.perf_counter()
    run()
    seconds = np.array([time.perf_counter() - began])
    transport.wait(transport.comm.Iallreduce(MPI.IN_PLACE, seconds, MPI.MAX), "the others")
    return minibatches * MINIBATCH / float(seconds[0])


def sgd(transport: Transport, alone: Transport, minibatches: int):
    """Two independent trainings; rank 0 does nothing."""
    if transport.rank == 0:
        return lambda: None
    one = session(alone, minibatches, "algorithm.name=sgd")
    return lambda: PROTOCOLS["synchronous"](one)


def distributed(transport: Transport, pair: Transport, minibatches: int, settings: tuple[str, ...]):
    """Rank 0 and two workers, or two peers."""
    has_server = configuration.load(None, list(settings)).algorithm.workers(3) == 2
    if not has_server and transport.rank == 0:
        return lambda: None
    ours = session(transport if has_server else pair, minibatches, *settings)
    return lambda: PROTOCOLS[ours.config.algorithm.protocol](ours)


if __name__ == "__main__":
    with threadpool_limits(1):
        main(*(int(word) for word in sys.argv[1:3]), *sys.argv[3:])
