"""One training step against PyTorch on the same GPU: same network, same minibatch, in turns in one process.

    python benchmarks/gpu/steps.py [CASE ...] [--repeats 20] [--matmul float32|tf32|bf16] [--json FILE]

A step is forward, loss, backward, the update of SGD with classical momentum, and the loss on the host. PyTorch, where
it is installed, has the same precision of products, and channels-last convolutions.
"""

import argparse
import json
import time
from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from mpitrain.algorithms.optimizers.sgd import classical
from mpitrain.device import choose
from mpitrain.errors import BadInput
from mpitrain.models.network import build
from mpitrain.models.torch import start as torch_start
from mpitrain.sampling.batch import Batch
from mpitrain.sampling.rng import stream

ETA, MU = 1e-3, 0.9
Step = Callable[[], float]
#: Preset, shape of a sample, classes, minibatch.
CASES: dict[str, tuple[tuple[int, ...], int, int]] = {
    "strom2015-dnn": ((340,), 3000, 1024),
    "zhang2013-dnn": ((462,), 10217, 1024),
    "easgd-imagenet": ((221, 221, 3), 1000, 128),
}


def our_step(device: Any, preset: str, batch: Batch, classes: int, width: float) -> tuple[str, Step]:
    """The program's own step on flat vectors."""
    shape = batch.inputs.shape[1:]
    network = build(preset, shape, classes, width=width, l2=0.0, workspace=device.workspace())
    theta = device.to_device(network.initial(0))
    gradient, velocity, scratch = np.empty_like(theta), np.zeros_like(theta), np.empty_like(theta)
    update, here = device.fast(classical), Batch(*map(device.to_device, batch))
    rng = stream(0, "dropout")

    def ready(part: slice) -> None:
        room = scratch[: part.stop - part.start]
        update(theta[part], velocity[part], gradient[part], room, eta=ETA, mu=MU)

    return f"{network.layout.size:,}", lambda: float(network.loss_and_gradient(theta, gradient, here, rng, ready))


def torch_layers(nn: Any, preset: str, classes: int) -> Any:
    """The same network in PyTorch."""
    if preset == "easgd-imagenet":
        pool, relu = nn.MaxPool2d, nn.ReLU
        return nn.Sequential(
            *(nn.Conv2d(3, 96, 7, 2), relu(inplace=True), pool(3)),
            *(nn.Conv2d(96, 256, 5), relu(inplace=True), pool(2)),
            *(nn.Conv2d(256, 384, 3), relu(inplace=True)),
            *(nn.Conv2d(384, 384, 2), relu(inplace=True)),
            *(nn.Conv2d(384, 256, 2), relu(inplace=True), pool(2), nn.Flatten()),
            *(nn.Linear(9216, 4096), relu(inplace=True), nn.Dropout(0.5)),
            *(nn.Linear(4096, 4096), relu(inplace=True), nn.Dropout(0.5)),
            nn.Linear(4096, classes),
        )
    sizes = [CASES[preset][0][0], *[2048 if preset == "zhang2013-dnn" else 1536] * 5]
    hidden = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.Sigmoid())]
    return nn.Sequential(*hidden, nn.Linear(sizes[-1], classes))


def torch_step(device: Any, preset: str, batch: Batch, classes: int) -> Step | None:
    """PyTorch's step, or None where there is none that sees a GPU."""
    try:
        if torch_start.without_cuda("steps.py"):
            return None
    except BadInput:
        return None
    import torch

    place = device.place()
    module = torch_layers(torch.nn, preset, classes).to(place.device)
    inputs, targets = (torch.from_numpy(part).to(place.device) for part in batch)
    targets = targets.long()
    if inputs.ndim == 4:
        module, inputs = module.to(memory_format=torch.channels_last), inputs.permute(0, 3, 1, 2)
    cross_entropy = torch.nn.CrossEntropyLoss()
    optimiser = torch.optim.SGD(module.parameters(), lr=ETA, momentum=MU)

    def step() -> float:
        optimiser.zero_grad()
        with place.bf16() if device.matmul == "bf16" else nullcontext():
            loss = cross_entropy(module(inputs), targets)
        loss.backward()
        optimiser.step()
        return float(loss.item())

    return step


def compare(steps: dict[str, Step], repeats: int) -> dict[str, float]:
    """Median seconds of each step, taken in turns; a step ends when its loss is on the host."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for repeat in range(repeats + 3):
        for name, step in steps.items():
            began = time.perf_counter()
            step()
            if repeat >= 3:
                times[name].append(time.perf_counter() - began)
    return {name: median(values) for name, values in times.items()}


def main() -> None:
    """One table, and one JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--matmul", choices=("float32", "tf32", "bf16"), default="tf32")
    parser.add_argument("--width", type=float, default=1.0, help="of our network; for a try without a GPU")
    parser.add_argument("--minibatch", type=int, default=0, help="instead of the case's own")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device = choose("gpu", options.matmul, 0)
    print(device)
    results: list[dict[str, Any]] = []
    report = {"device": str(device), "matmul": options.matmul, "steps": results}
    for preset in options.cases:
        shape, classes, minibatch = CASES[preset]
        rng, count = np.random.default_rng(0), options.minibatch or minibatch
        inputs = rng.standard_normal((count, *shape), np.float32)
        batch = Batch(inputs, rng.integers(0, classes, count).astype(np.int32))
        parameters, ours = our_step(device, preset, batch, classes, options.width)
        theirs = torch_step(device, preset, batch, classes)
        steps = {"mpitrain": ours} | ({"torch": theirs} if theirs else {})
        seconds = compare(steps, options.repeats)
        ratio = seconds["torch"] / seconds["mpitrain"] if theirs else None
        results.append({"network": preset, "minibatch": count, "seconds": seconds, "ratio": ratio})
        ours_ms = seconds["mpitrain"] * 1e3
        against = f"PyTorch {seconds['torch'] * 1e3:.2f} ms ({ratio:.2f}x)" if ratio else "no PyTorch with CUDA"
        print(f"{preset:<15} {parameters:>12} parameters, minibatch {count}: {ours_ms:.2f} ms, {against}", flush=True)
        if options.json:
            options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
