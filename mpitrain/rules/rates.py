"""Learning rates as functions of time and of the minibatch's size."""

from math import expm1, log1p, sqrt


def decayed(eta: float, t: int, gamma: float) -> float:
    """η/(1 + γt)^0.5 (Zhang, Choromanska & LeCun 2015, Supplement): EAMSGD escapes traps at long periods."""
    return eta / sqrt(1.0 + gamma * t)


def scaled_by_theory(eta: float, decay: float, k: float) -> tuple[float, float]:
    """(√k·ε, ω′) for a minibatch k times as large (Krizhevsky 2014, §5).

    √k keeps the variance of a step; ω′ makes one decay by √k·ε as strong as k decays by ε: 1 − √kεω′ = (1 − εω)^k.
    """
    scaled = sqrt(k) * eta
    # ω′ = (1 − (1 − εω)^k)/(√kε), without cancelling when εω is small
    return scaled, -expm1(k * log1p(-eta * decay)) / scaled


def scaled_in_practice(eta: float, decay: float, k: float) -> tuple[float, float]:
    """(k·ε, ω) for a minibatch k times as large: the heuristic Krizhevsky 2014, §5, found to work better."""
    return k * eta, decay
