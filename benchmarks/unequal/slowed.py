"""A perceptron whose gradient takes a given time on every rank, and twice that on one, as on nodes of their own.

The time is slept, so that ranks which share cores do not slow each other down.
"""

import os
import time

import torch
from torch import nn


class Slowed(nn.Sequential):
    """Sleeps in each forward pass of the training, where a launcher has started this process as a rank."""

    def __init__(self, seconds: float, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self._seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and torch.is_grad_enabled():
            time.sleep(self._seconds)
        return super().forward(x)


def build(input_shape: tuple[int, ...], classes: int, seconds: float, slow: int) -> nn.Module:
    """A perceptron that sleeps `seconds` in each training step, on rank `slow` twice as long. In a simulation no rank
    sleeps, since the cluster file says how long its gradients take."""
    rank = next((os.environ[name] for name in ("PMI_RANK", "OMPI_COMM_WORLD_RANK") if name in os.environ), None)
    sleeps = 0.0 if rank is None else seconds * (1 + (int(rank) == slow))
    inputs = int(torch.Size(input_shape).numel())
    return Slowed(sleeps, nn.Flatten(), nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, classes))
