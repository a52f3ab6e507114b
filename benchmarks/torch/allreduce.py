"""Ranks of one thread: a step of `allreduce` against DistributedDataParallel over gloo, on the same module, step about.

    mpirun -n 2 python benchmarks/torch/allreduce.py resnet|mlp [STEPS]

Each rank has 32 images of a minibatch. Prints medians of wall time in milliseconds on the first rank, and the median
over pairs of steps of DistributedDataParallel ÷ allreduce: more than 1 is better.
"""

import sys
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.distributed
from modules import CLASSES, MODULES, SHAPE
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from mpitrain import config as configuration
from mpitrain.checkpoint.state import fresh
from mpitrain.data.batch import Batch
from mpitrain.flat import Array
from mpitrain.models.torch_module import TorchModel
from mpitrain.mpi import Transport
from mpitrain.protocols.synchronous import AllreduceStepper
from mpitrain.sampling.queue import Queue, Work
from mpitrain.schedules.stages import Schedule
from mpitrain.training.context import Session
from mpitrain.training.gradients import Learner

SHARE, RATE = 32, 1e-3


class Random:
    """One minibatch of random images, as a corpus."""

    part, shape, classes, in_memory = "train", SHAPE, CLASSES, True

    def __init__(self, samples: int) -> None:
        rng = np.random.default_rng(1)
        self.samples = samples
        self.inputs = rng.standard_normal((samples, *SHAPE)).astype(np.float32)
        self.targets = rng.integers(0, CLASSES, samples).astype(np.int32)

    def gather(self, indices: Array, out: Batch, place: object = None) -> Batch:
        """Copy the samples."""
        np.take(self.inputs, indices, 0, out=out.inputs)
        np.take(self.targets, indices, 0, out=out.targets)
        return out


def stepper_of(transport: Transport, name: str) -> AllreduceStepper:
    """What takes the steps of `allreduce`."""
    config = configuration.load(
        None, ["algorithm.name=allreduce", "run.evaluate_every=0", f"training.learning_rate={RATE}"]
    )
    corpus = Random(SHARE * transport.size)
    model = TorchModel(lambda seed: MODULES[name](), SHAPE, CLASSES)
    schedule = Schedule(config, corpus.samples)
    state = fresh(config.algorithm, model.initial(1), Queue(corpus.samples, schedule.total))
    learner = Learner(model, corpus, seed=1, dtype="float32")
    members = list(range(transport.size))
    return AllreduceStepper(Session(config, transport, members, model, learner, schedule, state, time.monotonic))


def main(name: str, steps: int = 30) -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    transport = Transport()
    torch.distributed.init_process_group(
        "gloo", init_method="tcp://127.0.0.1:29511", rank=transport.rank, world_size=transport.size
    )
    stepper, plain = stepper_of(transport, name), DistributedDataParallel(MODULES[name]())
    stepper.eta = RATE
    optimizer, corpus = torch.optim.SGD(plain.parameters(), lr=RATE), Random(SHARE * transport.size)
    own = slice(SHARE * transport.rank, SHARE * (transport.rank + 1))
    x = torch.from_numpy(corpus.inputs[own]).permute(0, 3, 1, 2)
    targets = torch.from_numpy(corpus.targets[own]).long()
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
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
