"""Asynchronous ADMM (Zhang, Choromanska & LeCun 2015, §4, equations 9–11), with λ/ρ in place of λ; λ₀ = 0.

In a turn, a worker reads x̃ and calls `dual_ascent`, τ times `step` with fixed λ and x̃, and `centre_move`, whose d is
added to the centre. Each worker keeps `contribution`, its share in the centre, which starts at x̃₀ wherever the worker
itself starts: the centre is the mean of the contributions, and an initial error of the mean would never vanish.
"""

import numpy as np

from mpitrain.flat import Array


def dual_ascent(lam: Array, x: Array, centre: Array, scratch: Array) -> None:
    """Equation 9."""
    # λⁱ ← λⁱ − (xⁱ − x̃)
    np.subtract(x, centre, out=scratch)
    np.subtract(lam, scratch, out=lam)


def _attract(x: Array, lam: Array, centre: Array, scratch: Array, eta_rho: float) -> None:
    # x + (ηρ/(1 + ηρ))(λ + x̃ − x) = (x + ηρ(λ + x̃))/(1 + ηρ), but rounding 1 + ηρ to float32 cannot shrink x
    np.add(lam, centre, out=scratch)
    np.subtract(scratch, x, out=scratch)
    np.multiply(scratch, eta_rho / (1.0 + eta_rho), out=scratch)
    np.add(x, scratch, out=x)


def step(x: Array, u: Array, lam: Array, centre: Array, scratch: Array, *, eta: float, rho: float) -> None:
    """Equation 10, with the increment u of a local step instead of −ηg(xⁱ).

    The paper mentions a momentum variant (§5, footnote 3) without defining it; with Nesterov's velocity as u, this is
    the analogue of equation 7.
    """
    # xⁱ ← (xⁱ + u + ηρ(λⁱ + x̃))/(1 + ηρ)
    _attract(x, lam, centre, scratch, eta * rho)
    np.multiply(u, 1.0 / (1.0 + eta * rho), out=scratch)
    np.add(x, scratch, out=x)


def centre_move(d: Array, contribution: Array, x: Array, lam: Array, scratch: Array, *, workers: int) -> None:
    """Equation 11 as a change: x̃ ← x̃ + d preserves x̃ = (1/p)Σ(xⁱ − λⁱ) if only worker i has moved."""
    # d ← ((xⁱ − λⁱ) − contribution)/p
    np.subtract(x, lam, out=scratch)
    np.subtract(scratch, contribution, out=d)
    np.divide(d, workers, out=d)
    # contribution ← xⁱ − λⁱ
    np.positive(scratch, out=contribution)
