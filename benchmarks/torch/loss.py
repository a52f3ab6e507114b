"""A benchmark of `compare --on` on one rank against a plain PyTorch loop: test loss, figure of merit and seconds.

    python benchmarks/torch/loss.py bytes|glyphs|speech [--only sgd|adamw] [--seeds 1,2,3] [--set KEY=VALUE]

The plain loop has torch.optim's optimizer, and otherwise the same: the initial weights, the minibatches, the rate of
each step, clipping. Its networks of layers are written with torch.nn; that of the bytes is the example's module. The
data are below runs/benchmarks, where they are made unless they are there, or where --set has a data.path.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from accuracy import gathered
from torch import nn
from torch.nn import functional

from mpitrain import config as configuration
from mpitrain.config import Config
from mpitrain.data.corpus import Corpus
from mpitrain.data.sampler import epoch_indices
from mpitrain.models.model import Model
from mpitrain.models.torch.module import standalone
from mpitrain.report.benchmarks.known import NAMES, base_of, require_data
from mpitrain.training.inputs import network_of
from mpitrain.training.parts import Shards, held_out, trained_on

#: The keys of each optimizer; those of sgd are the benchmark's own, but on bytes with momentum.
SETTINGS = {
    ("bytes", "sgd"): {"algorithm.optimizer.name": "nesterov", "training.learning_rate": 0.3},
    ("bytes", "adamw"): {"algorithm.optimizer.name": "adamw", "training.learning_rate": 4e-3},
    ("glyphs", "sgd"): {},
    ("glyphs", "adamw"): {"algorithm.optimizer.name": "adamw", "training.learning_rate": 2e-3},
    ("speech", "sgd"): {},
    ("speech", "adamw"): {"algorithm.optimizer.name": "adamw", "training.learning_rate": 1e-3},
}
Result = tuple[float, float, float]  #: test loss, figure of merit, seconds of the training


class Turned(nn.Module):
    """Images [n, c, h, w] as rows whose channels come last."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.permute(0, 2, 3, 1).flatten(1)


def layers(name: str, corpus: Corpus, network: Model, seed: int) -> nn.Module:
    """The network of glyphs or speech, with the initial weights of ours."""
    if name == "glyphs":
        first = [nn.Conv2d(1, 16, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.MaxPool2d(2), nn.ReLU()]
        module = nn.Sequential(*first, Turned(), nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, corpus.classes))
    else:
        widths = [math.prod(corpus.shape), 256, 256]
        hidden = [each for pair in pairwise(widths) for each in (nn.Linear(*pair), nn.ReLU())]
        module = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(256, corpus.classes))
    views = network.layout.views(network.initial(seed)).values()
    with torch.no_grad():
        for parameter, own in zip(module.parameters(), views, strict=True):
            order = {1: (0,), 2: (1, 0), 4: (3, 2, 0, 1)}[own.ndim]
            parameter.copy_(torch.from_numpy(own.copy()).permute(order))
    return module


def loss_of(module: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean cross-entropy, and which outputs are wrong."""
    outputs = module(inputs).flatten(0, -2)
    return functional.cross_entropy(outputs, targets.flatten()), outputs.argmax(1) != targets.flatten()


def batch(corpus: Corpus, indices: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """A minibatch: of windows of tokens, or as `accuracy.py` has it."""
    if corpus.kind != "tokens":
        return gathered(corpus, indices)
    out = corpus.gather(indices, corpus.form.room(len(indices), np.float32, np.empty))
    return torch.from_numpy(out.inputs).long(), torch.from_numpy(out.targets).long()


def plain(name: str, config: Config) -> Result:
    """A plain loop."""
    source, training, seed = Shards(config), config.training, config.training.seed
    corpus = source.training(hold=True)
    network = network_of(config, corpus.form, corpus.classes)
    module = standalone(network, network.initial(seed)) if name == "bytes" else layers(name, corpus, network, seed)
    optimizers = {"nesterov": {"momentum": 0.9, "nesterov": True}, "sgd": {}}
    chosen = type(config.algorithm.chosen).__struct_config__.tag if config.algorithm.chosen else "sgd"
    make = torch.optim.AdamW if chosen == "adamw" else torch.optim.SGD
    optimizer = make(module.parameters(), lr=1.0, **optimizers.get(str(chosen), {}))
    schedule, served, start = config.schedule(corpus.samples), 0, time.monotonic()
    module.train()
    while served < schedule.total:
        epoch, place = divmod(served, corpus.samples)
        count = min(training.minibatch, schedule.total - served, corpus.samples - place)
        inputs, targets = batch(corpus, epoch_indices(seed, epoch, corpus.samples)[place : place + count])
        optimizer.param_groups[0]["lr"] = schedule.at(served).learning_rate
        optimizer.zero_grad()
        loss_of(module, inputs, targets)[0].backward()
        if training.clip_norm:
            nn.utils.clip_grad_norm_(module.parameters(), training.clip_norm)
        optimizer.step()
        served += count
    seconds = time.monotonic() - start
    test = source.opened(held_out(source.parts())[0], trained_on(config, source, None))
    loss, wrong, count = 0.0, 0, 0
    module.eval()
    with torch.no_grad():
        for indices in np.array_split(np.arange(test.samples), test.samples // 64 + 1):
            inputs, targets = batch(test, indices)
            mean, missed = loss_of(module, inputs, targets)
            loss, wrong, count = loss + float(mean) * len(missed), wrong + int(missed.sum()), count + len(missed)
    return loss / count, loss / count / math.log(2) if name == "bytes" else wrong / count, seconds


def ours(path: Path, settings: list[str]) -> Result:
    """A run on one rank."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        words = [word for setting in [*settings, "run.progress=none"] for word in ("--set", setting)]
        command = [sys.executable, "-m", "mpitrain", "train", str(path), *words, "--out", str(out)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        told = json.loads((out / "summary.json").read_text())
    test = next(key.removesuffix("_loss") for key in told if key.startswith("test") and key.endswith("_loss"))
    merit = told.get(f"{test}_bits_per_byte", told[f"{test}_error"])
    return told[f"{test}_loss"], merit, told["seconds"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--only", choices=["sgd", "adamw"])
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args()
    torch.set_num_threads(1)
    require_data(options.name, options.set)
    base = base_of(options.name, options.set)
    for optimizer in [options.only] if options.only else ["sgd", "adamw"]:
        found = []
        for seed in map(int, options.seeds.split(",")):
            own = [f"{key}={value}" for key, value in SETTINGS[options.name, optimizer].items()]
            settings = [*base.settings, "algorithm.name=sgd", *own, "run.evaluate_every=0", f"training.seed={seed}"]
            settings += options.set
            found.append((ours(base.path, settings), plain(options.name, configuration.load(base.path, settings))))
            told = "; ".join("loss {:.4f}, merit {:.4f}, {:.1f} s".format(*each) for each in found[-1])
            print(f"{options.name}, {optimizer}, seed {seed}: mpitrain and plain: {told}", flush=True)
        (loss, merit, _), (plain_loss, plain_merit, _) = np.mean(found, 0)
        spread = np.std(found, 0, ddof=min(len(found) - 1, 1))[:, 1]
        print(
            f"{options.name}, {optimizer}: merit {merit:.4f} ± {spread[0]:.4f}, plain {plain_merit:.4f} ± "
            f"{spread[1]:.4f}; mean loss {loss:.4f}, plain {plain_loss:.4f}, ratio {loss / plain_loss:.4f}"
        )


if __name__ == "__main__":
    main()
