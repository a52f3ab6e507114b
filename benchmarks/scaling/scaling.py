"""Samples per second of distributed algorithms against independent `sgd` processes, alternating in one run.

mpirun -n 3 python benchmarks/scaling/scaling.py [ROUNDS] [MINIBATCHES]

Ranks 1 and 2 each train `sgd` on their own at the same time; then rank 0 serves the two as workers of `asgd` (n = 3).
The ratio is of the sums of samples per second; the median over the rounds counts.
"""

import statistics
import sys
import time

import numpy as np
from mpi4py import MPI
from threadpoolctl import threadpool_limits
from workload import MINIBATCH, session

from mpitrain.mpi import Transport
from mpitrain.protocols import PROTOCOLS


def main(rounds: int, minibatches: int) -> None:
    """Print one line a round and the medians."""
    transport, alone = Transport(), Transport(MPI.COMM_SELF)
    transport.local_size = 1
    ratios = []
    for number in range(rounds + 1):
        independent = timed(transport, lambda: sgd(transport, alone, minibatches // 2), minibatches)
        served = timed(transport, lambda: asgd(transport, minibatches), minibatches)
        if number:  # the first round warms up
            ratios.append(served / independent)
            if transport.rank == 0:
                print(f"2 x sgd {independent:7.0f} samples/s   asgd {served:7.0f}   ratio {ratios[-1]:.3f}", flush=True)
    if transport.rank == 0:
        print(f"median ratio {statistics.median(ratios):.3f} over {rounds} rounds")


def timed(transport: Transport, action, minibatches: int) -> float:  # noqa: ANN001
    """Samples per second of all ranks together, from a common start to the last rank's end."""
    run = action()  # builds; what it returns trains
    transport.barrier("the others")
    began = time.perf_counter()
    run()
    seconds = np.array([time.perf_counter() - began])
    transport.wait(transport.comm.Iallreduce(MPI.IN_PLACE, seconds, MPI.MAX), "the others")
    return minibatches * MINIBATCH / float(seconds[0])


def sgd(transport: Transport, alone: Transport, minibatches: int):  # noqa: ANN201
    """Two independent trainings; rank 0 does nothing."""
    if transport.rank == 0:
        return lambda: None
    one = session(alone, minibatches, "algorithm.name=sgd")
    return lambda: PROTOCOLS["synchronous"](one)


def asgd(transport: Transport, minibatches: int):  # noqa: ANN201
    """A server and two workers."""
    ours = session(transport, minibatches, "algorithm.preset=zhang2013")
    return lambda: PROTOCOLS["server"](ours)


if __name__ == "__main__":
    with threadpool_limits(1):
        main(*(int(word) for word in (sys.argv[1:] + ["7", "60"][len(sys.argv) - 1 :])))
