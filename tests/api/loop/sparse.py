"""Trainings on ½‖x − s‖² with `sparse-delta`; samples s and steps such that nothing is rounded.

Arguments: the algorithm's keys of each training, as JSON. Training 0 saves at the end to "0/kept"; "0/moved-RANK.npy"
is what this rank's steps changed, "0/end-RANK.npy" what it ends with.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

import mpitrain

#: Multiples of 2⁻⁶, of which minibatches have eight.
SAMPLES = torch.from_numpy(np.random.default_rng(3).integers(-64, 64, (240, 3000)) / 64)
EPOCHS, MINIBATCH, RATE = 3, 8, 1 / 16
#: Batches after which the ranks meet: one that has the processor alone would be done before another takes a message.
MEETING = 3


class Point(nn.Module):
    """The vector x, at first all one half."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.full((SAMPLES.shape[1],), 0.5, dtype=torch.float64))

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        return 0.5 * (self.x - samples).square().sum(1).mean()


def train(folder: Path, keys: str) -> None:
    model = Point()
    optimizer, moved = torch.optim.SGD(model.parameters(), RATE), np.zeros(SAMPLES.shape[1])
    with mpitrain.distribute(model, optimizer, "sparse-delta", out=folder / "run", **json.loads(keys)) as ranks:
        for _ in range(EPOCHS):
            for number, samples in enumerate(ranks.share(DataLoader(SAMPLES, batch_size=MINIBATCH))):
                if not number % MEETING:
                    ranks.mean(0.0)
                before = model.x.detach().clone()
                optimizer.zero_grad()
                model(samples).backward()
                optimizer.step()
                moved += (model.x.detach() - before).numpy()
        ranks.save(folder / "kept")
        np.save(folder / f"moved-{ranks.rank}.npy", moved)
    np.save(folder / f"end-{ranks.rank}.npy", model.x.detach().numpy())


if __name__ == "__main__":
    for number, keys in enumerate(sys.argv[1:]):
        train(Path(str(number)), keys)
