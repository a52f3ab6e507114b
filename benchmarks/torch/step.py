"""One thread: a step of SGD through mpitrain's flat vectors against a plain PyTorch loop, step about.

    python benchmarks/torch/step.py resnet|mlp float32|bf16 [STEPS]

Prints the medians in milliseconds of processor time, which other programs on the machine disturb least, and the median
over pairs of steps of plain ÷ ours: 1 is equal, more is better.
"""

import sys
import time
from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import torch
from modules import CLASSES, MODULES, SHAPE
from torch.nn import functional

from mpitrain.algorithms.optimizers import Descent, Sgd
from mpitrain.device import CPU
from mpitrain.flat import Array, block_pairs
from mpitrain.models.model import Consumer, Draws
from mpitrain.models.torch.module import TorchModel
from mpitrain.sampling.batch import Batch
from mpitrain.sampling.rng import stream

MINIBATCH, RATE = 64, 1e-3


def seconds(step: Callable[[], None]) -> float:
    """Processor time of one step on this thread."""
    began = time.thread_time()
    step()
    return time.thread_time() - began


def taken(steps: tuple[Callable[[], None], ...], backwards: bool) -> list[float]:
    """Processor time of each step: which one comes first changes, because what comes before matters."""
    times = [seconds(step) for step in (reversed(steps) if backwards else steps)]
    return times[::-1] if backwards else times


def main(name: str, precision: str, steps: int = 40) -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    rng, bf16 = np.random.default_rng(1), precision == "bf16"
    batch = Batch(
        rng.standard_normal((MINIBATCH, *SHAPE)).astype(np.float32),
        rng.integers(0, CLASSES, MINIBATCH).astype(np.int32),
    )
    model = TorchModel(lambda seed: MODULES[name](), SHAPE, CLASSES, bf16=bf16)
    theta = model.initial(1)
    gradient, descent = np.zeros_like(theta), Descent(Sgd(CPU.fast), theta, {})
    plain = MODULES[name]()
    optimizer = torch.optim.SGD(plain.parameters(), lr=RATE)
    x, targets = torch.from_numpy(batch.inputs).permute(0, 3, 1, 2), torch.from_numpy(batch.targets).long()

    def update(part: slice, values: Array) -> None:
        for b, g in block_pairs(part, values):
            descent.step(b, g, RATE, 0)

    def ours() -> None:
        rng, consumer = stream(1, "dropout", 0, 0), Consumer(gradient, update)
        model.loss_and_gradient(descent.at, gradient, batch, Draws(rng), consumer)

    def theirs() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16) if bf16 else nullcontext():
            loss = functional.cross_entropy(plain(x), targets)
        loss.backward()
        optimizer.step()
        loss.item()

    for step in (ours, theirs):
        step()
    pairs = np.array([taken((ours, theirs), number % 2 == 1) for number in range(steps)])
    medians = 1e3 * np.median(pairs, axis=0)
    print(
        f"{name} {precision}: ours {medians[0]:.1f} ms, plain {medians[1]:.1f} ms, "
        f"plain / ours {np.median(pairs[:, 1] / pairs[:, 0]):.3f}"
    )


if __name__ == "__main__":
    main(*sys.argv[1:3], *map(int, sys.argv[3:]))
