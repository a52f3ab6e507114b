"""Outer optimizers: how Θ follows the mean of ranks that have trained by themselves from a common start.

Δ is the difference between the ranks' mean and their start; v is the momentum in units of Δ (BMUF's v is ζ times ours).
"""

from typing import Literal

import numpy as np

from mpitrain.algorithms.optimizers.sgd import look_ahead
from mpitrain.flat import Array

LookAhead = Literal["none", "start", "step"]


class OuterMomentum:
    """Momentum μ, and a step ζ; with `by_learning_rate`, v is in units of the learning rate (SlowMo).

    `ahead`: "start": ranks start ahead of Θ, at Θ + μζv (BMUF); "step": Θ itself moves ahead (DiLoCo).
    """

    def __init__(self, momentum: float, rate: float, ahead: LookAhead, by_learning_rate: bool) -> None:
        self.momentum, self._rate, self._by_learning_rate = momentum, rate, by_learning_rate
        self._ahead = momentum * rate if ahead == "start" else 0.0
        self._nesterov = ahead == "step"

    def start(self, out: Array, theta: Array, v: Array) -> None:
        """Write where the ranks start."""
        # xⁱ ← Θ, or Θ + μζv
        if self._ahead:
            look_ahead(out, theta, v, self._ahead)
        else:
            np.copyto(out, theta)

    def step(self, theta: Array, v: Array, mean: Array, scratch: Array, learning_rate: float) -> None:
        """Move Θ and v by the ranks' `mean`, which is overwritten."""
        mu, unit = self.momentum, learning_rate if self._by_learning_rate else 1.0
        # Δ ← mean − their start
        np.subtract(mean, theta, out=mean)
        if self._ahead:
            np.multiply(v, self._ahead, out=scratch)
            np.subtract(mean, scratch, out=mean)
        # v ← μv + Δ/unit
        np.multiply(v, mu, out=v)
        if unit == 0.0:
            # Θ ← Θ + ζΔ without momentum: Δ is 0, or comes from steps before the learning rate fell to 0
            np.multiply(mean, self._rate, out=scratch)
            np.add(theta, scratch, out=theta)
            return
        if unit != 1.0:
            np.divide(mean, unit, out=mean)
        np.add(v, mean, out=v)
        if self._nesterov:
            # Θ ← Θ + ζ(Δ + μv): Nesterov's momentum with −Δ as the gradient, in the form of PyTorch's SGD
            np.multiply(v, mu, out=scratch)
            np.add(scratch, mean, out=scratch)
            np.multiply(scratch, self._rate, out=scratch)
        else:
            # Θ ← Θ + ζv
            np.multiply(v, self._rate * unit, out=scratch)
        np.add(theta, scratch, out=theta)
