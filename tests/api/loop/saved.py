"""Trainings with dropout, batch normalisation and draws by NumPy and Python: straight, up to a save, or on from it.

Arguments: "straight", "first", "then" or two of them with a comma; the places of saves, as EPOCH or EPOCH.BATCH, with
commas; algorithms. Print hashes of each one's model and of every rank's optimizer, at the save and at the end.
"""

import json
import random
import sys
from collections.abc import Callable
from hashlib import sha256
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import mpitrain

EPOCHS = 2
KEYS: dict[str, dict[str, Any]] = {
    "block-momentum": {"tau": 3, "momentum": 0.5, "look_ahead": "start"},
    "allreduce": {},
    "sparse-delta": {},
    "sparse-delta in step": {"synchronous": True, "bits": 4, "target_density": 0.2},
}
modes, places, *algorithms = sys.argv[1:]
torch.set_num_threads(1)


def model() -> nn.Module:
    module = nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 3))
    module.register_buffer("mask", torch.full((3,), -torch.inf))
    return module


def adam(module: nn.Module) -> torch.optim.Optimizer:
    """In two groups."""
    return torch.optim.AdamW(
        [{"params": module[0].parameters()}, {"params": module[1:].parameters(), "lr": 0.02}], 0.01
    )


def momentum(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), 0.05, momentum=0.9, nesterov=True)


def train(ranks: Any, module: nn.Module, optimizer: torch.optim.Optimizer, name: str, mode: str, place: str) -> None:
    saved_epoch, _, saved_batch = place.partition(".")
    inputs = torch.randn(104, 8, generator=torch.Generator().manual_seed(4))
    loader = DataLoader(TensorDataset(inputs, inputs[:, :3].argmax(1)), batch_size=8, shuffle=True)
    for epoch in range(ranks.epoch, EPOCHS):
        for k, (x, y) in enumerate(ranks.share(loader)):
            x = x + 0.1 * np.random.randn() + 0.1 * random.random()  # noqa: NPY002
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x), y).backward()
            optimizer.step()
            if mode == "first" and saved_batch and (epoch, k) == (int(saved_epoch), int(saved_batch)):
                ranks.save(name)
                return
        if mode == "first" and not saved_batch and epoch == int(saved_epoch):
            ranks.save(name)
            return


def digest(tensors: Any) -> str:
    return sha256(b"".join(t.detach().numpy().tobytes() for t in tensors)).hexdigest()[:16]


def run(mode: str, place: str, algorithm: str, make: Callable[[nn.Module], torch.optim.Optimizer]) -> None:
    """One training."""
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(9 if mode == "then" else 3)
    module = model()
    optimizer, name = make(module), f"saves/{place}/{algorithm}-{make.__name__}"
    keys = KEYS.get(algorithm, {"tau": 3})

    def tell(when: str, module: nn.Module) -> None:
        state = [t for each in optimizer.state.values() for t in each.values() if isinstance(t, torch.Tensor)]
        told = [mode, when, name, ranks.rank, digest(module.parameters()), digest(state)]
        print(json.dumps(told) + "\n", end="", flush=True)

    with mpitrain.distribute(module, optimizer, algorithm.removesuffix(" in step"), **keys) as ranks:
        random.seed(random.random() + ranks.rank)
        if mode == "then":
            ranks.load(name)
            with ranks.model() as kept:
                tell("save", kept)
            ranks.mean(0.0)  # before anybody's first steps move the common model
        train(ranks, module, optimizer, name, mode, place)
        if mode == "first":
            with ranks.model() as kept:
                tell("save", kept)
    tell("end", module)


for each in product(modes.split(","), places.split(","), algorithms, (adam, momentum)):
    run(*each)
