"""One training step against PyTorch on the CPU: same network, one thread each, in turns in one process.

    OPENBLAS_NUM_THREADS=1 python benchmarks/compute/step.py [CASE ...] [--gradient] [--repeats N]

A step is forward, loss, backward and the update of SGD with classical momentum; --gradient leaves the update out.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
from torch import nn

from mpitrain.algorithms.optimizers.sgd import classical
from mpitrain.flat import BLOCK, blocks
from mpitrain.models.model import Draws
from mpitrain.models.network import Network, build
from mpitrain.sampling.batch import Batch

Step = Callable[[], float]
ETA, MU = 1e-3, 0.9


def sigmoid_reference() -> nn.Module:
    """340 inputs, five sigmoid layers of 1024, 1998 outputs."""
    sizes = [340, *[1024] * 5]
    hidden = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.Sigmoid())]
    return nn.Sequential(*hidden, nn.Linear(1024, 1998))


def cifar_reference() -> nn.Module:
    """The CIFAR network of EASGD §5.1."""
    return nn.Sequential(
        *(nn.Conv2d(3, 64, 5), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        *(nn.Conv2d(64, 128, 5), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        *(nn.Conv2d(128, 64, 3), nn.ReLU(inplace=True), nn.Flatten()),
        *(nn.Linear(256, 256), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(256, 10)),
    )


def our_step(network: Network, batch: Batch, update: bool) -> Step:
    """A step on flat vectors."""
    parameters = network.initial(0)
    gradients, velocity = np.empty_like(parameters), np.zeros_like(parameters)
    scratch = np.empty(BLOCK, parameters.dtype)
    rng = np.random.default_rng(0)

    def ready(layer: slice) -> None:
        """A layer's update as soon as its gradient is final, while it is in cache: as the program does."""
        for block in blocks(layer.stop - layer.start):
            part = slice(layer.start + block.start, layer.start + block.stop)
            room = scratch[: part.stop - part.start]
            classical(parameters[part], velocity[part], gradients[part], room, eta=ETA, mu=MU)

    return lambda: network.loss_and_gradient(parameters, gradients, batch, Draws(rng), ready if update else None)


def torch_step(module: nn.Module, batch: Batch, update: bool, channels_last: bool = False) -> Step:
    """The same step by autograd and torch.optim.SGD."""
    inputs, targets = torch.from_numpy(batch.inputs), torch.from_numpy(batch.targets).long()
    if inputs.ndim == 4:
        inputs = inputs.permute(0, 3, 1, 2)
        if channels_last:
            module = module.to(memory_format=torch.channels_last)
        else:
            inputs = inputs.contiguous()
    cross_entropy = nn.CrossEntropyLoss()
    optimiser = torch.optim.SGD(module.parameters(), lr=ETA, momentum=MU)

    def step() -> float:
        optimiser.zero_grad()
        loss = cross_entropy(module(inputs), targets)
        loss.backward()
        if update:
            optimiser.step()
        return loss.item()

    return step


def sigmoid_steps(update: bool) -> dict[str, Step]:
    """340 inputs, 5 x 1024 sigmoid, 1998 outputs, minibatch 256."""
    batch = random_batch((256, 340), 1998)
    network = build("strom2015-dnn", (340,), 1998, width=1024 / 1536)
    return {
        "mpitrain": our_step(network, batch, update),
        "torch": torch_step(sigmoid_reference(), batch, update),
    }


def cifar_steps(update: bool) -> dict[str, Step]:
    """EASGD's CIFAR network on 28 x 28 x 3, minibatch 128; PyTorch in both of its memory layouts."""
    batch = random_batch((128, 28, 28, 3), 10)
    network = build("easgd-cifar", (28, 28, 3), 10, l2=0.0)
    return {
        "mpitrain": our_step(network, batch, update),
        "torch": torch_step(cifar_reference(), batch, update),
        "torch channels-last": torch_step(cifar_reference(), batch, update, channels_last=True),
    }


def random_batch(shape: tuple[int, ...], classes: int) -> Batch:
    """Gaussian inputs [shape], uniform targets."""
    rng = np.random.default_rng(0)
    return Batch(rng.standard_normal(shape, np.float32), rng.integers(0, classes, shape[0]).astype(np.int32))


CASES = {"sigmoid-5x1024": sigmoid_steps, "easgd-cifar": cifar_steps}


def compare(steps: dict[str, Step], repeats: int) -> dict[str, float]:
    """Median seconds of each step, taken in turns."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for repeat in range(repeats + 2):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            if repeat >= 2:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    """Print the medians and how many times faster than PyTorch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--gradient", action="store_true")
    parser.add_argument("--repeats", type=int, default=11)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.cases:
        medians = compare(CASES[name](not options.gradient), options.repeats)
        ours = medians.pop("mpitrain")
        others = ", ".join(f"{other} {value * 1e3:.1f} ms ({value / ours:.2f}x)" for other, value in medians.items())
        print(f"{name}: mpitrain {ours * 1e3:.1f} ms, {others}", flush=True)


if __name__ == "__main__":
    main()
