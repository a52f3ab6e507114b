"""A residual network with batch normalisation for small images (He et al. 2016, Deep Residual Learning, §4.2)."""

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """x + two convolutions of x; where the shape changes, a 1 x 1 convolution brings x to it."""

    def __init__(self, inputs: int, filters: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, filters, 3, stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(filters)
        self.second = nn.Conv2d(filters, filters, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(filters)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != filters:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, filters, 1, stride, bias=False), nn.BatchNorm2d(filters))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.first_norm(self.first(x)))
        return functional.relu(self.second_norm(self.second(y)) + self.shortcut(x))


def build(input_shape: tuple[int, int, int], classes: int, width: int = 16, blocks: int = 1) -> nn.Module:
    """Three stages of `blocks` blocks, of `width`, 2·`width` and 4·`width` filters; 6·`blocks` + 2 layers."""
    layers: list[nn.Module] = [
        nn.Conv2d(input_shape[0], width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
    ]
    inputs = width
    for stage in range(3):
        for number in range(blocks):
            layers.append(Block(inputs, width << stage, 2 if stage and not number else 1))
            inputs = width << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))
