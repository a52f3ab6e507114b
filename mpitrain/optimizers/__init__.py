"""Optimizers: each turns a gradient into the increment that an algorithm applies to its vectors."""

from typing import get_args

from mpitrain.optimizers.adamw import AdamW, AdamWOptions
from mpitrain.optimizers.descent import Descent
from mpitrain.optimizers.interface import Buffers, Optimizer, OptimizerOptions
from mpitrain.optimizers.momentum import (
    Momentum,
    MomentumOptions,
    Nesterov,
    NesterovOptions,
    Sgd,
    SgdOptions,
    with_momentum,
)

AnyOptimizer = SgdOptions | MomentumOptions | NesterovOptions | AdamWOptions

OPTIMIZERS: dict[str, type[OptimizerOptions]] = {
    str(kind.__struct_config__.tag): kind for kind in get_args(AnyOptimizer)
}
