"""Two workers of one thread: samples a second of `easgd` and `sparse-delta` against two independent PyTorch processes.

    mpirun -n 3 python benchmarks/torch/workers.py resnet|mlp [ROUNDS] [MINIBATCHES]

Ranks 1 and 2 each run a plain PyTorch loop at the same time; then they are workers of `easgd` (τ = 10), whose centre
rank 0 serves; then they are two peers of `sparse-delta` (0.1 % of the elements sent), while rank 0 does nothing. Both
sides take minibatches of 64, or as many as MINIBATCH says, from the same arrays in a random order, and update by plain
SGD. A ratio is of the sums of samples per second, of the algorithm to the plain loops of the same round, by the clock
and by the workers' processor time, which other programs on the machine disturb less; the medians over the rounds count.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from modules import MODULES
from mpi4py import MPI
from threadpoolctl import threadpool_limits
from torch.nn import functional
from workload import RATE, Random, session

from mpitrain.device import CPU
from mpitrain.mpi import Transport
from mpitrain.protocols import PROTOCOLS

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from launch import require_ranks

MINIBATCH = int(os.environ.get("MINIBATCH", "64"))
ALGORITHMS = {
    "easgd": ("algorithm.name=easgd", "algorithm.tau=10"),
    "sparse-delta": ("algorithm.name=sparse-delta", "algorithm.target_density=0.001"),
}


def plain(name: str, minibatches: int) -> Callable[[], None]:
    """An independent training."""
    module, (inputs, targets) = MODULES[name](), Random(minibatches * MINIBATCH).tensors()
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)

    def train() -> None:
        for indices in torch.randperm(len(inputs)).split(MINIBATCH):
            optimizer.zero_grad()
            loss = functional.cross_entropy(module(inputs[indices]), targets[indices])
            loss.backward()
            optimizer.step()
            loss.item()

    return train


def ours(transport: Transport, name: str, minibatches: int, algorithm: str) -> Callable[[], None]:
    """A training of all ranks of the transport together."""
    settings = (f"training.minibatch={MINIBATCH}", *ALGORITHMS[algorithm])
    one = session(transport, name, minibatches * MINIBATCH, *settings)
    return lambda: PROTOCOLS[one.config.algorithm.protocol](one)


def timed(transport: Transport, run: Callable[[], None], minibatches: int) -> np.ndarray:
    """Samples per second of both workers together, from a common start to the last rank's end, and per second of the
    workers' processor time."""
    transport.barrier("the others")
    began, busy = time.perf_counter(), time.process_time()
    run()
    seconds = np.array([time.perf_counter() - began])
    spent = np.array([time.process_time() - busy if transport.rank else 0.0])
    transport.wait(transport.comm.Iallreduce(MPI.IN_PLACE, seconds, MPI.MAX), "the others")
    transport.wait(transport.comm.Iallreduce(MPI.IN_PLACE, spent, MPI.SUM), "the others")
    return minibatches * MINIBATCH / np.array([float(seconds[0]), float(spent[0]) / 2])


def main(name: str, rounds: int = 7, minibatches: int = 80) -> None:
    """Print one line a round and the medians."""
    require_ranks(3)
    torch.set_num_threads(1)
    CPU.compile_rules(np.dtype(np.float32))
    transport = Transport()
    pair = Transport(transport.comm.Split(int(transport.rank == 0)))  # the two workers
    works = transport.rank > 0
    alone = plain(name, minibatches // 2) if works else lambda: None
    ratios: dict[str, list[np.ndarray]] = {algorithm: [] for algorithm in ALGORITHMS}
    for number in range(rounds + 1):
        independent = timed(transport, alone, minibatches)
        line = f"2 x PyTorch {independent[0]:6.0f} samples/s"
        for algorithm, each in ratios.items():
            who = transport if algorithm == "easgd" else pair
            run = ours(who, name, minibatches, algorithm) if works or who is transport else lambda: None
            rates = timed(transport, run, minibatches)
            ratio = rates / independent
            line += f"   {algorithm} {rates[0]:6.0f}, ratio {ratio[0]:.3f}, of processor time {ratio[1]:.3f}"
            if number:  # the first round warms up
                each.append(ratio)
        if number and transport.rank == 0:
            print(line, flush=True)
    if transport.rank == 0:
        for algorithm, each in ratios.items():
            wall, busy = np.median(each, axis=0)
            print(f"{name}: {algorithm}: median ratio {wall:.3f}, of processor time {busy:.3f} over {rounds} rounds")
    pair.leave()
    transport.leave()


if __name__ == "__main__":
    with threadpool_limits(1):
        main(sys.argv[1], *map(int, sys.argv[2:]))
