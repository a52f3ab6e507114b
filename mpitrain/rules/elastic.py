"""Elastic averaging (Zhang, Choromanska & LeCun 2015, §3): EASGD and EAMSGD, asynchronous and synchronous.

Worker, at an exchange: `elastic_difference` with the centre it read, and d goes to the centre (`move_centre`). Then, at
every step, a gradient taken at the x from before the exchange, so that exchange and gradient can overlap, and
`easgd_step` or `eamsgd_step` with d, or with None between exchanges. δ = 0 gives both the same bits.
"""

import numpy as np

from mpitrain.flat import Array
from mpitrain.rules.averaging import moving_average
from mpitrain.rules.sgd import classical, sgd


def alpha_from_beta(beta: float, workers: int) -> float:
    """Moving rate of one exchange, α = β/p; not divided by the communication period."""
    return beta / workers


def alpha_from_rho(eta: float, rho: float) -> float:
    """Moving rate from the penalty ρ of equation 2: α = ηρ."""
    return eta * rho


def elastic_difference(d: Array, x: Array, centre: Array, *, alpha: float) -> None:
    """The symmetric force between a worker and the centre."""
    # d ← α(x − x̃)
    np.subtract(x, centre, out=d)
    np.multiply(d, alpha, out=d)


def move_centre(centre: Array, d: Array) -> None:
    """Step b) of Algorithms 1 and 2, the centre's side."""
    # x̃ ← x̃ + α(x − x̃)
    np.add(centre, d, out=centre)


def easgd_step(x: Array, g: Array, d: Array | None, scratch: Array, *, eta: float) -> None:
    """Algorithm 1, and equation 5 of synchronous EASGD: `g` is the gradient at x."""
    # xⁱ ← xⁱ − α(x − x̃)
    if d is not None:
        np.subtract(x, d, out=x)
    # xⁱ ← xⁱ − ηg(x)
    sgd(x, g, scratch, eta=eta)


def eamsgd_step(x: Array, v: Array, g: Array, d: Array | None, scratch: Array, *, eta: float, delta: float) -> None:
    """Algorithm 2, and equation 7: `g` is the gradient at x + δv (`sgd.look_ahead`)."""
    # xⁱ ← xⁱ − α(x − x̃)
    if d is not None:
        np.subtract(x, d, out=x)
    # vⁱ ← δvⁱ − ηg(x + δvⁱ);  xⁱ ← xⁱ + vⁱ
    classical(x, v, g, scratch, eta=eta, mu=delta)


def synchronous_centre(centre: Array, mean: Array, scratch: Array, *, beta: float) -> None:
    """Equation 6, β = pα: the average over space (`mean`, of all xⁱ before their step) and time."""
    # x̃ ← (1 − β)x̃ + β(1/p)Σxⁱ
    moving_average(centre, mean, scratch, rate=beta)
