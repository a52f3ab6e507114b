"""Block momentum: workers train independently, and Θ follows the averages of their parameters with momentum.

Chen & Huo 2016 (BMUF), Wang et al. 2020 (SlowMo) and Douillard et al. 2023 (DiLoCo) are special cases of these rules.
Δ is the difference between the workers' mean and their starting point. v has the units of Δ; BMUF's v is ζ times this.
"""

import numpy as np

from mpitrain.flat import Array


def block_move(
    mean: Array, theta: Array, v: Array, scratch: Array, *, mu: float, unit: float = 1.0, ahead: float = 0.0
) -> None:
    """Update the momentum v; `mean` ← Δ/unit. Workers started at Θ + `ahead`·v.

    SlowMo's v is in units of the learning rate, which is then passed as `unit`.
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
    """The step of classical block momentum."""
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
