"""Sequential SGD and its momentum forms (Zhang, Choromanska & LeCun 2015, §5; Krizhevsky 2014, §5).

As in all update rules, arrays are slices of flat vectors of one dtype and one length, which are changed in place;
`scratch` is overwritten; scalars are Python floats (a NumPy scalar would widen float32). A momentum of 0 gives the bits
of the rule without momentum, since x + (−ηg) and x − ηg are the same number.
"""

from typing import ClassVar

import numpy as np

from mpitrain.algorithms.optimizers.interface import Buffers, Fast, Optimizer, OptimizerOptions, plain
from mpitrain.flat import Array
from mpitrain.keys import Fraction


def sgd(theta: Array, g: Array, scratch: Array, *, eta: float) -> None:
    """A step of SGD."""
    # θ ← θ − ηg
    np.multiply(g, eta, out=scratch)
    np.subtract(theta, scratch, out=theta)


def accelerate(v: Array, g: Array, scratch: Array, *, eta: float, mu: float) -> None:
    """The update of the velocity, which all momentum rules share."""
    # v ← μv − ηg
    if mu == 0.0:
        np.multiply(g, -eta, out=v)  # without v: 0·v is −0 or nan for some v
    else:
        np.multiply(g, eta, out=scratch)
        np.multiply(v, mu, out=v)
        np.subtract(v, scratch, out=v)


def look_ahead(out: Array, x: Array, v: Array, mu: float) -> None:
    """The point at which Nesterov's gradient is taken."""
    # out ← x + μv
    np.multiply(v, mu, out=out)
    np.add(out, x, out=out)


def behind(vectors: Buffers, mu: float) -> Array:
    """The x of which the vector "theta" is the look-ahead by μ times the vector "velocity"."""
    theta = vectors["theta"]
    if not mu:
        return theta
    x = np.empty_like(theta)
    look_ahead(x, theta, vectors["velocity"], -mu)
    return x


def classical(theta: Array, v: Array, g: Array, scratch: Array, *, eta: float, mu: float) -> None:
    """Classical momentum where `g` is the gradient at θ; Nesterov's (Sutskever et al. 2013) where it is the gradient at
    θ + μv, which `look_ahead` gives."""
    # v ← μv − ηg
    accelerate(v, g, scratch, eta=eta, mu=mu)
    # θ ← θ + v
    np.add(theta, v, out=theta)


def mdownpour(y: Array, v: Array, g: Array, scratch: Array, *, eta: float, delta: float) -> None:
    """Momentum DOWNPOUR, τ = 1: `g` is a worker's gradient at y.

    This is Nesterov's momentum in the variable y = x + δv. The model is x, as by `behind`.
    """
    # v ← δv − ηg
    accelerate(v, g, scratch, eta=eta, mu=delta)
    # y ← y − ηg + δv
    np.multiply(g, eta, out=scratch)
    np.subtract(y, scratch, out=y)
    np.multiply(v, delta, out=scratch)
    np.add(y, scratch, out=y)


def krizhevsky(w: Array, inc: Array, g: Array, scratch: Array, *, eta: float, mu: float, decay: float) -> None:
    """Krizhevsky's rule with decay ω; `g` is the minibatch mean of ∂E/∂w, without l2.

    ω = 0 gives the bits of `classical`.
    """
    # inc ← μ·inc − ω·ε·w + ε·⟨−∂E/∂w⟩
    accelerate(inc, g, scratch, eta=eta, mu=mu)
    if decay:
        np.multiply(w, decay * eta, out=scratch)
        np.subtract(inc, scratch, out=inc)
    # w ← w + inc
    np.add(w, inc, out=w)


class Sgd(Optimizer):
    """u = −ηg."""

    def __init__(self, fast: Fast = plain) -> None:
        self._sgd = fast(sgd)

    def increment(self, x: Array, g: Array, buffers: Buffers, scratch: Array, *, lr: float, t: int) -> Array:
        np.multiply(g, -lr, out=scratch)
        return scratch

    def step(self, x: Array, g: Array, buffers: Buffers, scratch: Array, *, lr: float, t: int) -> None:
        self._sgd(x, g, scratch, eta=lr)


class Momentum(Optimizer):
    """Classical momentum: u = v ← μv − ηg(x)."""

    def __init__(self, mu: float, fast: Fast = plain) -> None:
        self.mu = mu
        self._classical = fast(classical)

    def buffers(self, x: Array) -> Buffers:
        return {"velocity": np.zeros_like(x)}

    def increment(self, x: Array, g: Array, buffers: Buffers, scratch: Array, *, lr: float, t: int) -> Array:
        accelerate(buffers["velocity"], g, scratch, eta=lr, mu=self.mu)
        return buffers["velocity"]

    def step(self, x: Array, g: Array, buffers: Buffers, scratch: Array, *, lr: float, t: int) -> None:
        self._classical(x, buffers["velocity"], g, scratch, eta=lr, mu=self.mu)


class Nesterov(Momentum):
    """Nesterov's momentum: u = v ← μv − ηg(x + μv)."""

    looks_ahead = True

    def __init__(self, mu: float, fast: Fast = plain) -> None:
        super().__init__(mu, fast)
        self._look_ahead = fast(look_ahead)

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
