"""Lion (Chen et al. 2023, Algorithm 2), with decoupled weight decay.

u = −η(sign(β₁m + (1 − β₁)g) + λx);  m ← β₂m + (1 − β₂)g
"""

from typing import Annotated, ClassVar

import msgspec
import numpy as np

from mpitrain.algorithms.optimizers.interface import Buffers, Decaying, Fast, Optimizer
from mpitrain.flat import Array

Beta = Annotated[float, msgspec.Meta(gt=0, lt=1)]


class Lion(Optimizer):
    """Steps of one size in every element, in the direction of the sign of a mean of gradients."""

    def __init__(self, options: "LionOptions") -> None:
        self._options = options

    def buffers(self, x: Array) -> Buffers:
        return {"momentum": np.zeros_like(x)}

    def increment(self, x: Array, g: Array, buffers: Buffers, scratch: Array, *, lr: float, t: int) -> Array:
        o, m = self._options, buffers["momentum"]
        # sign(β₁m + (1 − β₁)g): a positive factor changes no sign, and saves a vector
        np.multiply(g, (1 - o.beta1) / o.beta1, out=scratch)
        np.add(m, scratch, out=scratch)
        np.copyto(scratch, np.sign(scratch))  # in place, NumPy takes ten times as long
        # m ← (m·β₂/(1 − β₂) + g)(1 − β₂)
        np.multiply(m, o.beta2 / (1 - o.beta2), out=m)
        np.add(m, g, out=m)
        np.multiply(m, 1 - o.beta2, out=m)
        if not o.weight_decay:
            np.multiply(scratch, -lr, out=scratch)
            return scratch
        # −ηλ(sign/λ + x)
        np.multiply(scratch, 1 / o.weight_decay, out=scratch)
        np.add(scratch, x, out=scratch)
        np.multiply(scratch, -lr * o.weight_decay, out=scratch)
        return scratch


class LionOptions(Decaying, frozen=True, tag_field="name", tag="lion"):
    """The sign of a mean of gradients."""

    training: ClassVar = {"learning_rate": 0.0003}
    beta1: Beta = 0.9  # β₁, of the mean whose sign is the step
    beta2: Beta = 0.99  # β₂, of the mean that is kept
    weight_decay: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0  # λ, times the learning rate, for all parameters

    def make(self, fast: Fast) -> Optimizer:
        return Lion(self)
