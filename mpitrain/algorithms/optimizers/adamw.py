"""Adam with decoupled weight decay (Kingma & Ba 2015, Algorithm 1; Loshchilov & Hutter 2019, Algorithm 2).

    m ← β₁m + (1 − β₁)g;  v ← β₂v + (1 − β₂)g²
    θ ← θ − η(m̂/(√v̂ + ε) + λθ),  m̂ = m/(1 − β₁ⁿ),  v̂ = v/(1 − β₂ⁿ)

n = t + 1 counts this step too. As in PyTorch, the decay is multiplied by the learning rate η.
"""

from math import sqrt
from typing import Annotated, ClassVar, NamedTuple

import msgspec
import numpy as np

from mpitrain.algorithms.optimizers.interface import Buffers, Decaying, Fast, Optimizer
from mpitrain.flat import Array
from mpitrain.keys import Fraction, NotNegative


class Factors(NamedTuple):
    """The factors of vectors in a step, computed in double precision before they are rounded."""

    keep_m: float  # β₁
    take_m: float  # 1 − β₁
    keep_v: float  # β₂
    take_v: float  # 1 − β₂
    correct_v: float  # 1/√(1 − β₂ⁿ)
    epsilon: float
    scale: float  # of m/(√v̂ + ε) before θ is added: 1/(λ(1 − β₁ⁿ)); without decay −η/(1 − β₁ⁿ), and nothing is added
    decay: float  # −ηλ


def factors(eta: float, t: int, beta1: float, beta2: float, epsilon: float, decay: float) -> Factors:
    """The factors of step t, counted from 0. The decay λ is 0 or at least 10⁻⁹, so that its inverse is a float32."""
    correct_m, correct_v = 1.0 - beta1 ** (t + 1), sqrt(1.0 - beta2 ** (t + 1))
    scale = 1.0 / (decay * correct_m) if decay else -eta / correct_m
    return Factors(beta1, 1.0 - beta1, beta2, 1.0 - beta2, 1.0 / correct_v, epsilon, scale, -eta * decay)


def moments_and_increment(x: Array, m: Array, v: Array, g: Array, scratch: Array, by: Factors) -> None:
    """Update both moments; `scratch` ← the increment of θ = x."""
    # m ← β₁m + (1 − β₁)g
    np.multiply(g, by.take_m, out=scratch)
    np.multiply(m, by.keep_m, out=m)
    np.add(m, scratch, out=m)
    # v ← β₂v + (1 − β₂)g²
    np.multiply(g, g, out=scratch)
    np.multiply(scratch, by.take_v, out=scratch)
    np.multiply(v, by.keep_v, out=v)
    np.add(v, scratch, out=v)
    # u ← −ηλ(m̂/(√v̂ + ε)/λ + θ): the decay is inside the bracket, so that one scratch vector suffices
    np.sqrt(v, out=scratch)
    np.multiply(scratch, by.correct_v, out=scratch)
    np.add(scratch, by.epsilon, out=scratch)
    np.divide(m, scratch, out=scratch)
    np.multiply(scratch, by.scale, out=scratch)
    if by.decay:
        np.add(scratch, x, out=scratch)
        np.multiply(scratch, by.decay, out=scratch)


def adamw(
    x: Array,
    m: Array,
    v: Array,
    g: Array,
    scratch: Array,
    *,
    eta: float,
    t: int,
    beta1: float,
    beta2: float,
    epsilon: float,
    decay: float,
) -> None:
    """Step t, counted from 0; x is θ."""
    moments_and_increment(x, m, v, g, scratch, factors(eta, t, beta1, beta2, epsilon, decay))
    np.add(x, scratch, out=x)


class AdamW(Optimizer):
    """u = −η(m̂/(√v̂ + ε) + λx), with the running means m of gradients and v of their squares."""

    def __init__(self, options: "AdamWOptions", fast: Fast) -> None:
        o, self._adamw = options, fast(adamw)
        self._constants = {"beta1": o.beta1, "beta2": o.beta2, "epsilon": o.epsilon, "decay": o.weight_decay}

    def buffers(self, x: Array) -> Buffers:
        return {"first_moment": np.zeros_like(x), "second_moment": np.zeros_like(x)}

    def increment(self, x: Array, g: Array, buffers: Buffers, scratch: Array, *, lr: float, t: int) -> Array:
        m, v = buffers["first_moment"], buffers["second_moment"]
        moments_and_increment(x, m, v, g, scratch, factors(lr, t, **self._constants))
        return scratch

    def step(self, x: Array, g: Array, buffers: Buffers, scratch: Array, *, lr: float, t: int) -> None:
        m, v = buffers["first_moment"], buffers["second_moment"]
        self._adamw(x, m, v, g, scratch, eta=lr, t=t, **self._constants)


class AdamWOptions(Decaying, frozen=True, tag_field="name", tag="adamw"):
    """Adam with decoupled weight decay."""

    training: ClassVar = {"learning_rate": 0.002}
    beta1: Fraction = 0.9  # β₁, of the first moment
    beta2: Fraction = 0.999  # β₂, of the second moment
    epsilon: Annotated[float, msgspec.Meta(ge=1e-30, le=1)] = 1e-8  # ε
    weight_decay: NotNegative = 0.01  # λ, times the learning rate as in PyTorch, for all parameters, beside model.l2

    def make(self, fast: Fast) -> Optimizer:
        return AdamW(self, fast)
