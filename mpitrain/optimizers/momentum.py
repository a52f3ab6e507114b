"""SGD and its momentum forms (Zhang, Choromanska & LeCun 2015, §5). The equations are in mpitrain/rules/sgd.py."""

from typing import ClassVar

import numpy as np

from mpitrain.flat import Array
from mpitrain.keys import Fraction
from mpitrain.optimizers.interface import Buffers, Optimizer, OptimizerOptions
from mpitrain.rules import Fast, plain
from mpitrain.rules import sgd as rule


class Sgd(Optimizer):
    """u = −ηg."""

    def __init__(self, fast: Fast = plain) -> None:
        self._sgd = fast(rule.sgd)

    def increment(self, x: Array, g: Array, buffers: Buffers, scratch: Array, *, lr: float, t: int) -> Array:
        np.multiply(g, -lr, out=scratch)
        return scratch

    def step(self, x: Array, g: Array, buffers: Buffers, scratch: Array, *, lr: float, t: int) -> None:
        self._sgd(x, g, scratch, eta=lr)


class Momentum(Optimizer):
    """Classical momentum: u = v ← μv − ηg(x)."""

    def __init__(self, mu: float, fast: Fast = plain) -> None:
        self.mu = mu
        self._classical = fast(rule.classical)

    def buffers(self, x: Array) -> Buffers:
        return {"velocity": np.zeros_like(x)}

    def increment(self, x: Array, g: Array, buffers: Buffers, scratch: Array, *, lr: float, t: int) -> Array:
        rule.accelerate(buffers["velocity"], g, scratch, eta=lr, mu=self.mu)
        return buffers["velocity"]

    def step(self, x: Array, g: Array, buffers: Buffers, scratch: Array, *, lr: float, t: int) -> None:
        self._classical(x, buffers["velocity"], g, scratch, eta=lr, mu=self.mu)


class Nesterov(Momentum):
    """Nesterov's momentum: u = v ← μv − ηg(x + μv)."""

    looks_ahead = True

    def __init__(self, mu: float, fast: Fast = plain) -> None:
        super().__init__(mu, fast)
        self._look_ahead = fast(rule.look_ahead)

    def at(self, x: Array, buffers: Buffers, out: Array) -> None:
        self._look_ahead(out, x, buffers["velocity"], self.mu)


def with_momentum(mu: float, nesterov: bool = True, fast: Fast = plain) -> Optimizer:
    """The optimizer for a momentum μ. For μ = 0 this is SGD, which computes the same bits without a velocity."""
    if mu == 0.0:
        return Sgd(fast)
    return Nesterov(mu, fast) if nesterov else Momentum(mu, fast)


class SgdOptions(OptimizerOptions, frozen=True, tag_field="name", tag="sgd"):
    """Plain SGD."""

    def make(self, fast: Fast) -> Optimizer:
        return Sgd(fast)


class MomentumOptions(OptimizerOptions, frozen=True, tag_field="name", tag="momentum"):
    """Classical momentum."""

    training: ClassVar = {"learning_rate": 0.02}
    momentum: Fraction = 0.9  # μ

    def make(self, fast: Fast) -> Optimizer:
        return with_momentum(self.momentum, nesterov=False, fast=fast)


class NesterovOptions(MomentumOptions, frozen=True, tag_field="name", tag="nesterov"):
    """Nesterov's momentum."""

    def make(self, fast: Fast) -> Optimizer:
        return with_momentum(self.momentum, fast=fast)
