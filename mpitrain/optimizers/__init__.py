"""Local steps. An optimizer turns a gradient into the increment that an algorithm applies to its vectors."""

from mpitrain.optimizers.descent import Descent
from mpitrain.optimizers.interface import Buffers, Optimizer
from mpitrain.optimizers.momentum import Momentum, Nesterov, Sgd, with_momentum

__all__ = ["Buffers", "Descent", "Momentum", "Nesterov", "Optimizer", "Sgd", "with_momentum"]
