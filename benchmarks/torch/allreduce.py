"""Ranks of one thread: a step of `allreduce` against DistributedDataParallel over gloo, on the same module, step about.

    mpirun -n 2 python benchmarks/torch/allreduce.py resnet|mlp [STEPS]

Each rank has 32 images of a minibatch. Prints medians of wall time in milliseconds on the first rank, and the median
over pairs of steps of DistributedDataParallel ÷ allreduce: more than 1 is better.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.distributed
from modules import MODULES
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from workload import RATE, Random, session

from mpitrain.mpi import Transport, abort_on_exception
from mpitrain.protocols.synchronous import AllreduceStepper
from mpitrain.sampling.queue import Work

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from launch import free_port, require_ranks

SHARE = 32


def stepper_of(transport: Transport, name: str) -> AllreduceStepper:
    """What takes the steps of `allreduce`, without momentum, as the optimizer of the other side."""
    settings = ("algorithm.name=allreduce", "algorithm.momentum=0.0", f"training.minibatch={SHARE}")
    return AllreduceStepper(session(transport, name, SHARE * transport.size, *settings))


def main(name: str, steps: int = 30) -> None:
    """Measure and print."""
    require_ranks(2, or_more=True)
    torch.set_num_threads(1)
    transport = Transport()
    port = transport.broadcast(str(free_port()).encode(), "the port").decode()
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=transport.rank, world_size=transport.size
    )
    abort_on_exception()  # again: PyTorch's own hook would swallow the message
    stepper, plain = stepper_of(transport, name), DistributedDataParallel(MODULES[name]())
    stepper.learning_rate = RATE
    optimizer, corpus = torch.optim.SGD(plain.parameters(), lr=RATE), Random(SHARE * transport.size)
    own = slice(SHARE * transport.rank, SHARE * (transport.rank + 1))
    x, targets = (tensor[own] for tensor in corpus.tensors())
    work = Work(0, 0, SHARE * transport.size, 0)

    def ours() -> None:
        stepper.step(work)

    def theirs() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(plain(x), targets).backward()
        optimizer.step()

    def seconds(step: Callable[[], None]) -> float:
        transport.barrier("the other ranks")
        began = time.monotonic()
        step()
        return time.monotonic() - began

    for step in (ours, theirs, ours, theirs):
        step()
    pairs = np.array([(seconds(ours), seconds(theirs)) for _ in range(steps)])
    if transport.rank == 0:
        medians = 1e3 * np.median(pairs, axis=0)
        ratio = np.median(pairs[:, 1] / pairs[:, 0])
        print(f"{name}: allreduce {medians[0]:.1f} ms, DDP {medians[1]:.1f} ms, DDP / allreduce {ratio:.3f}")
    transport.leave()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
