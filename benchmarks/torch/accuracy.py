"""The examples against a plain PyTorch loop: test error of the same module on the same data, a few seeds each.

    python benchmarks/torch/accuracy.py resnet|tdnn [SHARDS] [SEEDS] [EPOCHS]

This program trains as the example's README says: `resnet` by easgd on three ranks, two of them workers, `tdnn` by
allreduce on two ranks. The plain loop is one process with torch.optim.SGD at the same learning rate, as many epochs
and, for allreduce, its momentum and the minibatch of both ranks. It evaluates with the statistics of normalisation
that it collected while it trained.
"""

import json
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch.nn import functional

from mpitrain import config as configuration
from mpitrain.config import Config
from mpitrain.data.corpus import Corpus
from mpitrain.sampling.batch import Batch
from mpitrain.training.parts import Shards, held_out, trained_on

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from launch import wait_for

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DEADLINE = 6 * 3600  # seconds for a run


class Example(NamedTuple):
    """How an example trains, and what the plain loop does instead."""

    ranks: int
    minibatches: int  # of the configuration that make one of the plain loop
    optimizer: dict[str, float]


KNOWN = {
    "resnet": Example(3, 1, {}),
    "tdnn": Example(2, 2, {"momentum": 0.9, "nesterov": True}),
}


def ours(name: str, seed: int, overrides: list[str]) -> float:
    """Test error of a run of the example."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        fixed = ["run.threads=1", "run.progress=none", "run.evaluate_every=0"]
        settings = [f"training.seed={seed}", *fixed, *overrides]
        words = [word for setting in settings for word in ("--set", setting)]
        mpirun = str(Path(sys.executable).with_name("mpirun"))
        command = [mpirun, "-n", str(KNOWN[name].ranks), sys.executable, "-m", "mpitrain", "config.toml", *words]
        command += ["--out", str(out)]
        training = subprocess.Popen(command, cwd=EXAMPLES / name, stdout=subprocess.DEVNULL)
        wait_for(f"{name}, seed {seed}", [training], DEADLINE)
        return float(json.loads((out / "summary.json").read_text())["test_error"])


def gathered(corpus: Corpus, indices: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """A minibatch as the module takes it."""
    out = Batch(np.empty((len(indices), *corpus.shape), np.float32), np.empty(len(indices), np.int32))
    inputs = torch.from_numpy(corpus.gather(indices, out).inputs)
    return inputs.permute(0, 3, 1, 2) if inputs.ndim == 4 else inputs, torch.from_numpy(out.targets).long()


def plain(name: str, seed: int, config: Config) -> float:
    """Test error of a plain loop."""
    torch.manual_seed(seed)
    source, training = Shards(config), config.training
    corpus = source.training(hold=True)
    shape = corpus.shape if len(corpus.shape) == 2 else (corpus.shape[2], *corpus.shape[:2])
    module = import_module(name).build(shape, corpus.classes, **(config.model.options or {}))
    optimizer = torch.optim.SGD(module.parameters(), lr=training.learning_rate, **KNOWN[name].optimizer)
    minibatch = training.minibatch * KNOWN[name].minibatches
    for _ in range(int(training.epochs)):
        for indices in torch.randperm(corpus.samples).split(minibatch):
            inputs, targets = gathered(corpus, indices.numpy())
            optimizer.zero_grad()
            functional.cross_entropy(module(inputs), targets).backward()
            optimizer.step()
    module.eval()
    test = source.opened(held_out(source.parts())[0], trained_on(config, source, None))
    wrong = 0
    with torch.no_grad():
        for indices in np.array_split(np.arange(test.samples), test.samples // 256 + 1):
            inputs, targets = gathered(test, indices)
            wrong += int((module(inputs).argmax(1) != targets).sum())
    return wrong / test.samples


def main(name: str, shards: str = "", seeds: int = 3, epochs: int = 0) -> None:
    """Train both, and print a line for each seed and the means."""
    torch.set_num_threads(1)
    sys.path.insert(0, str(EXAMPLES / name))
    overrides = [f"data.path={Path(shards).absolute()}"] if shards else []
    overrides += [f"training.epochs={epochs}"] if epochs else []
    config = configuration.load(EXAMPLES / name / "config.toml", overrides)
    found = []
    for seed in range(1, seeds + 1):
        found.append((ours(name, seed, overrides), plain(name, seed, config)))
        print(f"{name}, seed {seed}: mpitrain {100 * found[-1][0]:.2f} %, plain {100 * found[-1][1]:.2f} %", flush=True)
    means, spread = 100 * np.mean(found, 0), 100 * np.std(found, 0, ddof=min(seeds - 1, 1))
    print(f"mean: mpitrain {means[0]:.2f} ± {spread[0]:.2f} %, plain {means[1]:.2f} ± {spread[1]:.2f} %")


if __name__ == "__main__":
    main(*sys.argv[1:3], *map(int, sys.argv[3:]))
