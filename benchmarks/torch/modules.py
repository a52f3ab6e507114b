"""The two modules that are measured: convolutions with batch normalisation, and large matrices."""

import sys
from pathlib import Path

from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "resnet"))

from resnet import build as residual

SHAPE, CLASSES = (32, 32, 3), 10


def resnet() -> nn.Module:
    """78,042 parameters."""
    return residual((3, 32, 32), CLASSES)


def mlp() -> nn.Module:
    """5,256,202 parameters."""
    hidden = [layer for _ in range(2) for layer in (nn.Linear(1024, 1024), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 1024), nn.ReLU(), *hidden, nn.Linear(1024, CLASSES))


MODULES = {"resnet": resnet, "mlp": mlp}
