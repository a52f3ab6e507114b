"""One thread: a step of SGD on every preset by NumPy, by PyTorch, and by PyTorch in bf16, in turns in one process.

    OPENBLAS_NUM_THREADS=1 python benchmarks/torch/presets.py [ROUNDS] [PRESET ...]

The presets have the inputs, classes and minibatches that are printed; the two largest are narrowed. PyTorch computes
images in channels-last memory. Prints medians of processor time in milliseconds, what `"auto"` of `model.backend` and
`run.matmul` chose just before, what a step takes by that ÷ by the best of the three, and the seconds of the choice.
"""

import sys
import time
from collections.abc import Callable

import numpy as np
import torch

from mpitrain import config as configuration
from mpitrain.algorithms.optimizers import Descent, Sgd
from mpitrain.device import CPU
from mpitrain.flat import Array, block_pairs
from mpitrain.models.model import Consumer, Draws, Model
from mpitrain.models.network import build
from mpitrain.models.presets import PRESETS
from mpitrain.models.torch.layers import TorchNetwork
from mpitrain.sampling.batch import Batch, SampleForm
from mpitrain.sampling.rng import stream
from mpitrain.training.step_times import Way, steps, timed, ways

RATE = 1e-4
#: Width and minibatch where they are not 1 and 64.
SMALLER = {"easgd-imagenet": (0.5, 8), "krizhevsky2014": (0.5, 8), "zhang2013-dnn": (1.0, 256)}
SMALLER |= dict.fromkeys(("strom2015-dnn", "chan2014-dnn", "chan2014-cnn"), (1.0, 256))


def step_of(model: Model, batch: Batch) -> Callable[[], None]:
    """A step of SGD."""
    theta = model.initial(1)
    gradient, descent = np.empty_like(theta), Descent(Sgd(CPU.fast), theta, {})

    def update(part: slice, values: Array) -> None:
        for b, g in block_pairs(part, values):
            descent.step(b, g, RATE, 0)

    def step() -> None:
        rng, consumer = stream(1, "dropout", 0, 0), Consumer(gradient, update)
        float(model.loss_and_gradient(descent.at, gradient, batch, Draws(rng), consumer))

    return step


def chosen(name: str, width: float, minibatch: int) -> tuple[int, Way, float]:
    """What "auto" chooses, and its number among the three; the seconds that the timing takes."""
    settings = [f"model.preset={name}", f"model.width={width}", f"training.minibatch={minibatch}"]
    config = configuration.load(None, [*settings, "model.backend=auto", "run.matmul=auto"])
    preset, of = PRESETS[name], ways(config)
    every = steps(config, of, SampleForm(preset.inputs), preset.classes, 1)
    began = time.perf_counter()
    number = timed("", every, minibatch).fastest
    return number, of[number], time.perf_counter() - began


def measure(name: str, rounds: int) -> str:
    """A row of the table."""
    preset, (width, minibatch) = PRESETS[name], SMALLER.get(name, (1.0, 64))
    chosen_one, way, seconds = chosen(name, width, minibatch)
    networks = [build(name, preset.inputs, preset.classes, width=width) for _ in range(3)]
    rng = np.random.default_rng(1)
    inputs = rng.standard_normal((minibatch, *networks[0].input_shape), dtype=np.float32)
    batch = Batch(inputs, rng.integers(0, preset.classes, minibatch).astype(np.int32))
    models: list[Model] = [networks[0], TorchNetwork(networks[1]), TorchNetwork(networks[2], bf16=True)]
    steps, times = [step_of(model, batch) for model in models], np.empty((rounds, 3))
    for number in range(-1, rounds):  # the first round warms up
        for place in rng.permutation(3):
            began = time.thread_time()
            steps[place]()
            times[max(number, 0), place] = 1e3 * (time.thread_time() - began)
    numpy, plain, bf16 = np.median(times, axis=0)
    shape = " × ".join(map(str, preset.inputs))
    return (
        f"| `{name}`, {shape}, {preset.classes:,} classes | {width:g} | {minibatch} | {numpy:.1f} | "
        f"{plain:.1f} ({plain / numpy:.2f}) | {bf16:.1f} ({bf16 / numpy:.2f}) | "
        f"{way} | {(numpy, plain, bf16)[chosen_one] / min(numpy, plain, bf16):.2f} | {seconds:.1f} |"
    )


def main(rounds: int = 9, *names: str) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    CPU.compile_rules(np.dtype(np.float32))
    print('| preset | width | minibatch | NumPy, ms | PyTorch | PyTorch, bf16 | "auto" | ÷ best | s |')
    print("|---|---|---|---|---|---|---|---|---|")
    for name in names or PRESETS:
        print(measure(name, rounds), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]), *sys.argv[2:])
