"""What computes networks best on a GPU? A training step of every preset, in turns in one process.

    python benchmarks/gpu/steps.py [PRESET ...] [--matmul float32|tf32|bf16] [--repeats 20] [--no-compile] [--json FILE]

A step is forward, loss, backward, the update of SGD, and the loss on the host. It is taken by the program's own layers,
by PyTorch on the same flat vectors (`model.backend = "torch"`), by that with `torch.compile`, and by a plain PyTorch
loop with the same network. The precision of products is the same for all.
"""

import argparse
import json
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from mpitrain.algorithms.optimizers import Descent, Sgd
from mpitrain.device import choose
from mpitrain.errors import BadInput
from mpitrain.flat import Array, block_pairs
from mpitrain.models.model import Consumer, Draws, Model
from mpitrain.models.network import build
from mpitrain.models.presets import PRESETS
from mpitrain.models.torch import start as torch_start
from mpitrain.sampling.batch import Batch
from mpitrain.sampling.rng import stream

RATE, WARM_UP = 1e-3, 3
#: The minibatch of a preset, where it is not that of the fully connected networks of speech.
MINIBATCH, MINIBATCHES = 1024, {"easgd-imagenet": 128, "krizhevsky2014": 128, "easgd-cifar": 128, "digits-cnn": 32}
Step = Callable[[], float]


def flat_step(device: Any, model: Model, batch: Batch) -> Step:
    """A step on flat vectors."""
    descent = Descent(Sgd(device.fast), device.to_device(model.initial(1)), {})
    gradient, rng = np.zeros_like(descent.at), stream(0, "dropout")

    def update(part: slice, values: Array) -> None:
        for b, g in block_pairs(part, values):
            descent.step(b, g, RATE, 0)

    return lambda: float(model.loss_and_gradient(descent.at, gradient, batch, Draws(rng), Consumer(gradient, update)))


def plain_step(device: Any, model: Any, batch: Batch) -> Step:
    """A step as a PyTorch program takes it, in PyTorch's own stream, of a module that is `model`'s."""
    import torch

    place = model.place
    module = model.standalone(model.initial(1)).to(place.device).train()
    device.compute.synchronize()  # the minibatch is there, for streams that wait for nothing
    inputs, targets = model.inputs(batch.inputs).clone(), model.targets(batch).clone()
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)

    def step() -> float:
        optimizer.zero_grad()
        with place.bf16() if device.matmul == "bf16" else nullcontext():
            loss = model.loss(module(inputs), targets)
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step


def steps_of(device: Any, preset: str, batch: Batch, width: float, compiled: bool) -> tuple[int, dict[str, Step]]:
    """The network's parameters, and its steps by name."""
    known = PRESETS[preset]

    def network() -> Any:
        return build(preset, known.inputs, known.classes, width=width, workspace=device.workspace())

    layers = network()
    steps = {"layers": flat_step(device, layers, batch)}
    if not without_torch():
        from mpitrain.models.torch.layers import TorchNetwork

        bf16, place = device.matmul == "bf16", device.place()
        models = [TorchNetwork(network(), bf16=bf16, place=place) for _ in range(2)]
        steps |= {"torch": flat_step(device, models[0], batch), "plain": plain_step(device, models[0], batch)}
        if compiled:
            import torch

            torch.compiler.reset()
            models[1].module.compile(dynamic=False)
            steps["compiled"] = flat_step(device, models[1], batch)
    return layers.layout.size, steps


def without_torch() -> str:
    """Why PyTorch is not compared; "" if it is."""
    try:
        return torch_start.without_cuda("steps.py")
    except BadInput as error:
        return str(error)


def compare(steps: Mapping[str, Step], repeats: int) -> dict[str, float]:
    """Median seconds of each step, taken in turns; a step ends when its loss is on the host."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for repeat in range(repeats + WARM_UP):
        for name, step in steps.items():
            began = time.perf_counter()
            step()
            if repeat >= WARM_UP:
                times[name].append(time.perf_counter() - began)
    return {name: median(values) for name, values in times.items()}


def main() -> None:
    """One table, and one JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("presets", nargs="*", default=list(PRESETS))
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--matmul", choices=("float32", "tf32", "bf16"), default="tf32")
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile, which takes long to begin")
    parser.add_argument("--width", type=float, default=1.0, help="for a try without a GPU")
    parser.add_argument("--minibatch", type=int, default=0, help="instead of the preset's own")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device = choose("gpu", options.matmul, 0)
    print(f"{device}; {without_torch() or 'with PyTorch'}\n\nMilliseconds of a step:\n")
    print("| network | parameters | minibatch | layers | torch | compiled | plain |\n|---|---|---|---|---|---|---|")
    results: list[dict[str, Any]] = []
    for preset in options.presets:
        rng, known = np.random.default_rng(0), PRESETS[preset]
        count = options.minibatch or MINIBATCHES.get(preset, MINIBATCH)
        inputs = rng.standard_normal((count, *known.inputs), np.float32)
        targets = rng.integers(0, known.classes, count).astype(np.int32)
        batch = Batch(device.to_device(inputs), device.to_device(targets))
        parameters, steps = steps_of(device, preset, batch, options.width, not options.no_compile)
        seconds = compare(steps, options.repeats)
        results.append({"network": preset, "minibatch": count, "parameters": parameters, "seconds": seconds})
        times = [
            f"{1e3 * seconds[name]:.2f}" if name in seconds else "–"
            for name in ("layers", "torch", "compiled", "plain")
        ]
        print(f"| `{preset}` | {parameters:,} | {count} | {' | '.join(times)} |", flush=True)
        if options.json:
            report = {"device": str(device), "matmul": options.matmul, "steps": results}
            options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
