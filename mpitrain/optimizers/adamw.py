"""AdamW. The equations are in mpitrain/rules/adamw.py."""

from typing import Annotated, ClassVar

import msgspec
import numpy as np

from mpitrain.flat import Array
from mpitrain.keys import Fraction, NotNegative
from mpitrain.optimizers.interface import Buffers, Optimizer, OptimizerOptions
from mpitrain.rules import Fast
from mpitrain.rules import adamw as rule


class AdamW(Optimizer):
    """u = −η(m̂/(√v̂ + ε) + λx), with the running means m of gradients and v of their squares."""

    def __init__(self, options: "AdamWOptions", fast: Fast) -> None:
        o, self._adamw = options, fast(rule.adamw)
        self._constants = {"beta1": o.beta1, "beta2": o.beta2, "epsilon": o.epsilon, "decay": o.weight_decay}

    def buffers(self, x: Array) -> Buffers:
        return {"first_moment": np.zeros_like(x), "second_moment": np.zeros_like(x)}

    def increment(self, x: Array, g: Array, buffers: Buffers, scratch: Array, *, lr: float, t: int) -> Array:
        m, v = buffers["first_moment"], buffers["second_moment"]
        rule.increment(x, m, v, g, scratch, rule.factors(lr, t, **self._constants))
        return scratch

    def step(self, x: Array, g: Array, buffers: Buffers, scratch: Array, *, lr: float, t: int) -> None:
        m, v = buffers["first_moment"], buffers["second_moment"]
        self._adamw(x, m, v, g, scratch, eta=lr, t=t, **self._constants)


class AdamWOptions(OptimizerOptions, frozen=True, tag_field="name", tag="adamw"):
    """Adam with decoupled weight decay."""

    training: ClassVar = {"learning_rate": 0.002}
    beta1: Fraction = 0.9  # β₁, of the first moment
    beta2: Fraction = 0.999  # β₂, of the second moment
    epsilon: Annotated[float, msgspec.Meta(ge=1e-30, le=1)] = 1e-8  # ε
    weight_decay: NotNegative = 0.01  # λ, times the learning rate as in PyTorch, for all parameters, beside model.l2

    def __post_init__(self) -> None:
        if 0 < self.weight_decay < 1e-9:
            raise ValueError("weight_decay: expected 0, or 1e-9 and more")

    def make(self, fast: Fast) -> Optimizer:
        return AdamW(self, fast)
