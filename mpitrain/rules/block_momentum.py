"""Block momentum: workers train by themselves, and the average of what they reach moves with a momentum of its own.

Chen & Huo 2016 (BMUF), Wang et al. 2020 (SlowMo) and Douillard et al. 2023 (DiLoCo) are settings of these rules. Δ is
how far the workers' mean has come from where they started. v is kept in the units of Δ; BMUF's own v is ζ times that.
"""

import numpy as np

from mpitrain.flat import Array


def block_move(
    mean: Array, theta: Array, v: Array, scratch: Array, *, mu: float, unit: float = 1.0, ahead: float = 0.0
) -> None:
    """The momentum of the blocks; `mean` becomes Δ/unit. Workers started at Θ + `ahead`·v.

    SlowMo keeps v in units of the learning rate, which `unit` is then.
    """
    # Δ ← mean − (Θ + ahead·v)
    np.subtract(mean, theta, out=mean)
    if ahead:
        np.multiply(v, ahead, out=scratch)
        np.subtract(mean, scratch, out=mean)
    # v ← μv + Δ/unit
    np.multiply(v, mu, out=v)
    if unit == 1.0:
        np.add(v, mean, out=v)
    else:
        np.divide(mean, unit, out=mean)
        np.add(v, mean, out=v)


def block_step(theta: Array, v: Array, scratch: Array, *, rate: float) -> None:
    """Classical block momentum."""
    # Θ ← Θ + ζv
    np.multiply(v, rate, out=scratch)
    np.add(theta, scratch, out=theta)


def nesterov_step(theta: Array, v: Array, delta: Array, scratch: Array, *, rate: float, mu: float) -> None:
    """DiLoCo's outer step: Nesterov's momentum with −Δ as the gradient, in the form of PyTorch's SGD."""
    # Θ ← Θ + ζ(Δ + μv)
    np.multiply(v, mu, out=scratch)
    np.add(scratch, delta, out=scratch)
    np.multiply(scratch, rate, out=scratch)
    np.add(theta, scratch, out=theta)
