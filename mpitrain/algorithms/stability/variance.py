"""How far gradient noise moves EASGD's and EAMSGD's centre: stationary variances on F(x) = x²/2, exact.

Each worker's gradient is xⁱ + ξⁱ; the ξⁱ are independent with variance σ². All variances are in units of σ², and η in
units of 1/curvature. A linear map z ← Mz + noise of covariance Q has the stationary covariance Σ = MΣMᵀ + Q, the
discrete Lyapunov equation.

Synchronous (equations 5 to 7 of Zhang, Choromanska & LeCun 2015): the mean x̄ of the xⁱ and the centre x̃ obey a map of
their own, since the centre reacts to the mean alone. The noise of the mean's gradient has the variance σ²/p:

    v̄ ← δv̄ − η(x̄ + δv̄) − ηξ̄;   x̄ ← x̄ + v̄ − α(x̄ − x̃);   x̃ ← (1 − β)x̃ + βx̄,   β = pα

With δ = 0 and v̄ eliminated, this is the 2 × 2 map [[1 − η − α, α], [β, 1 − β]] of (x̄, x̃) with Q = diag(η²/p, 0).
Round-robin: a turn (`maps.turn`) is the same map for every worker, so Σ is that at the end of a turn.
"""

from typing import NamedTuple

import numpy as np

from mpitrain.algorithms.stability import maps
from mpitrain.flat import Array

DOUBLINGS = 60  # 2⁶⁰ steps: a map that is stable in double precision has forgotten its start


class Variances(NamedTuple):
    """In units of σ²; infinite where the map is not stable."""

    centre: float
    mean: float  #: of the mean of the workers' x


def stationary(M: Array, Q: Array) -> Array:
    """Σ = MΣMᵀ + Q [n, n], by doubling: Σ ← Σ + AΣAᵀ, A ← A². Infinite where M's spectral radius is 1 or more."""
    if np.abs(np.linalg.eigvals(M)).max() >= 1:
        return np.full_like(Q, np.inf)
    sigma, power = Q.copy(), M
    for _ in range(DOUBLINGS):
        added = power @ sigma @ power.T
        sigma = sigma + added
        if np.abs(added).max() <= 1e-15 * np.abs(sigma).max():
            break
        power = power @ power
    return sigma


def single(eta: float, momentum: float = 0.0) -> float:
    """The variance of x under SGD on one rank, with Nesterov's `momentum`; η/(2 − η) without momentum."""
    keep = momentum * (1 - eta)
    M, noise = np.array([[keep, -eta], [keep, 1 - eta]]), np.array([-eta, -eta])
    return float(stationary(M, np.outer(noise, noise))[1, 1])


def synchronous(workers: int, eta: float, alpha: float, momentum: float = 0.0) -> Variances:
    """The variances under equations 5 and 6, with `momentum` under equations 7 and 6. State: (v̄, x̄, x̃)."""
    beta, keep = workers * alpha, momentum * (1 - eta)
    M = np.array([[keep, -eta, 0], [keep, 1 - eta - alpha, alpha], [0, beta, 1 - beta]])
    noise = np.array([-eta, -eta, 0])  # ξ̄ enters v̄, and x̄ by v̄
    sigma = stationary(M, np.outer(noise, noise) / workers)
    return Variances(float(sigma[2, 2]), float(sigma[1, 1]))


def round_robin(workers: int, eta: float, alpha: float, momentum: float = 0.0) -> Variances:
    """The variances at the end of a turn of the round-robin scheme with τ = 1."""
    method = maps.method_named("eamsgd", momentum)
    G = maps.turn(method, workers, np.float64(eta), np.float64(alpha))
    noise = np.zeros(len(G))
    noise[2 * workers - 2 : 2 * workers] = -eta  # whoever just had its turn is now last; ξ enters its v and x
    sigma = stationary(G, np.outer(noise, noise))
    x = slice(1, 2 * workers, 2)
    return Variances(float(sigma[-1, -1]), float(sigma[x, x].mean()))
