"""Elastic averaging (Zhang, Choromanska & LeCun 2015, §3): EASGD and EAMSGD, asynchronous and synchronous.

At an exchange, a worker computes d by `elastic_difference` from the centre that it read, and d is added to the centre
(`move_centre`). The gradient is taken at the x from before the exchange, so that both can overlap; then d is subtracted
from x (`give_up`), which takes its optimizer's step: SGD in Algorithm 1 and equation 5, Nesterov's momentum in
Algorithm 2 and equation 7.
"""

import numpy as np

from mpitrain.flat import Array
from mpitrain.rules.averaging import moving_average


def alpha_from_beta(beta: float, workers: int) -> float:
    """The moving rate of an exchange, α = β/p, which is not divided by the communication period."""
    return beta / workers


def alpha_from_rho(eta: float, rho: float) -> float:
    """The moving rate for the penalty ρ of equation 2: α = ηρ."""
    return eta * rho


def elastic_difference(d: Array, x: Array, centre: Array, *, alpha: float) -> None:
    """The symmetric force between a worker and the centre."""
    # d ← α(x − x̃)
    np.subtract(x, centre, out=d)
    np.multiply(d, alpha, out=d)


def move_centre(centre: Array, d: Array) -> None:
    """Step b) of Algorithms 1 and 2, on the centre."""
    # x̃ ← x̃ + α(x − x̃)
    np.add(centre, d, out=centre)


def give_up(x: Array, d: Array) -> None:
    """Step a) of Algorithms 1 and 2, on the worker, just before its own step."""
    # xⁱ ← xⁱ − α(x − x̃)
    np.subtract(x, d, out=x)


def synchronous_centre(centre: Array, mean: Array, scratch: Array, *, beta: float) -> None:
    """Equation 6, β = pα: the average over space (`mean`, of all xⁱ before their step) and time."""
    # x̃ ← (1 − β)x̃ + β(1/p)Σxⁱ
    moving_average(centre, mean, scratch, rate=beta)


def easgd_condition(eta: Array, alpha: Array) -> Array:
    """0 ≤ η ≤ 2 and 0 ≤ α ≤ (4 − 2η)/(4 − η): sufficient for every p, exact for odd p, not necessary for even p."""
    return (eta >= 0) & (eta <= 2) & (alpha >= 0) & (alpha * (4 - eta) <= 4 - 2 * eta)
