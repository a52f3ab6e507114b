"""Optimizers: each turns a gradient into the increment that an algorithm applies to its vectors."""

from typing import TYPE_CHECKING, Union

from mpitrain.algorithms.optimizers.interface import Buffers, Descent, Fast, Optimizer, OptimizerOptions, Rule, plain
from mpitrain.algorithms.optimizers.sgd import Momentum, Nesterov, Sgd, with_momentum
from mpitrain.keys import tagged

#: Options by the value of `algorithm.optimizer.name`, in the order of their modules.
OPTIMIZERS = tagged(OptimizerOptions, "mpitrain.algorithms.optimizers", "sgd", "adamw", "lion")

if TYPE_CHECKING:
    AnyOptimizer = OptimizerOptions
else:
    AnyOptimizer = Union[tuple(OPTIMIZERS.values())]  # noqa: UP007 (of a list, for msgspec)
