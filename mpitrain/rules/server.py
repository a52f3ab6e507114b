"""The parameter server's update (Chan & Lane 2014, Algorithm 1; Zhang 2013 is μ = 0, β = 1) and MDOWNPOUR's.

∇ is the sum of the gradients of a worker's local steps, not multiplied by η or −1. (In §4 of the paper, workers send a
difference of parameters; with Algorithm 1 as printed, this would ascend, and apply η twice.)
"""

import numpy as np

from mpitrain.flat import Array
from mpitrain.rules.sgd import accelerate, sgd


def decay(i: int, j: int, beta: float) -> float:
    """The weight α = β^(i−j) of a gradient at Θ_j if the server is at Θ_i. Raises ValueError if j > i."""
    if j > i:
        raise ValueError(f"a gradient at index {j} reached a server at index {i}")
    return beta ** (i - j)


def update(
    theta: Array, v: Array | None, gradient: Array, scratch: Array, *, eta: float, mu: float, alpha: float
) -> None:
    """The update of Algorithm 1, after which the caller increments i.

    v may be None if μ = 0; Θ gets the same bits without a velocity.
    """
    if v is None:
        if mu != 0.0:
            raise ValueError(f"momentum {mu} needs a velocity")
        # Θ ← Θ − αη∇
        sgd(theta, gradient, scratch, eta=alpha * eta)
        return
    # v ← μv − αη∇
    accelerate(v, gradient, scratch, eta=alpha * eta, mu=mu)
    # Θ ← Θ + v
    np.add(theta, v, out=theta)


def mdownpour(y: Array, v: Array, g: Array, scratch: Array, *, eta: float, delta: float) -> None:
    """Momentum DOWNPOUR, τ = 1 (Zhang, Choromanska & LeCun 2015, Supplement): `g` is a worker's gradient at y.

    This is Nesterov's momentum in the variable y = x + δv. The model is x: `look_ahead(x, y, v, -delta)`.
    """
    # v ← δv − ηg
    accelerate(v, g, scratch, eta=eta, mu=delta)
    # y ← y − ηg + δv
    np.multiply(g, eta, out=scratch)
    np.subtract(y, scratch, out=y)
    np.multiply(v, delta, out=scratch)
    np.add(y, scratch, out=y)
