"""A time-delay network for windows of frames: dilated convolutions over time (Peddinti, Povey, Khudanpur 2015)."""

import torch
from torch import nn


class Tdnn(nn.Module):
    """Convolutions of 3 frames, 1, 2, 3 apart, each with batch normalisation; the mean over time; two layers more."""

    def __init__(self, features: int, classes: int, units: int, dilations: list[int]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = features
        for dilation in dilations:
            layers += [nn.Conv1d(inputs, units, 3, dilation=dilation), nn.ReLU(), nn.BatchNorm1d(units)]
            inputs = units
        self.frames = nn.Sequential(*layers)
        self.last = nn.Sequential(nn.Linear(units, units), nn.ReLU(), nn.BatchNorm1d(units), nn.Linear(units, classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Outputs [n, classes] for frames [n, window, features]."""
        return self.last(self.frames(x.transpose(1, 2)).mean(2))


def build(
    input_shape: tuple[int, int], classes: int, units: int = 128, dilations: tuple[int, ...] = (1, 2, 3)
) -> nn.Module:
    """The window must have more frames than twice the sum of the dilations."""
    return Tdnn(input_shape[1], classes, units, list(dilations))
