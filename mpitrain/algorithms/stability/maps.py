"""The linear maps of §4 of Zhang, Choromanska & LeCun 2015: round-robin EASGD, EAMSGD and ADMM on F(x) = x²/2.

The state is (x¹, …, xᵖ, x̃) for EASGD, (v¹, x¹, …, vᵖ, xᵖ, x̃) for EAMSGD and (λ¹, x¹, …, λᵖ, xᵖ, x̃) for ADMM. Every
function takes η and the moving rate α or the penalty ρ as numbers or as arrays that broadcast, and returns arrays of
the broadcast shape [*, n, n].
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from mpitrain.flat import Array

Map = Callable[[int, int, Array, Array], Array]

#: Tolerance for rounding: a radius of 1 (α = 0, or the boundary of the condition) is stable.
ALLOWANCE = 1e-9


def _identity(size: int, *scalars: Array) -> Array:
    return np.broadcast_to(np.eye(size), (*np.broadcast_shapes(*map(np.shape, scalars)), size, size)).copy()


def easgd(i: int, workers: int, eta: Array, alpha: Array) -> Array:
    """Fⁱ of EASGD, equations 12 and 13; i counts from 0."""
    F = _identity(workers + 1, eta, alpha)
    # xⁱ ← xⁱ − ηxⁱ − α(xⁱ − x̃)
    F[..., i, i] = 1 - eta - alpha
    F[..., i, -1] = alpha
    # x̃ ← x̃ + α(xⁱ − x̃)
    F[..., -1, i] = alpha
    F[..., -1, -1] = 1 - alpha
    return F


def eamsgd(i: int, workers: int, eta: Array, alpha: Array, *, momentum: float) -> Array:
    """One worker's turn of EAMSGD (Algorithm 2 with τ = 1), which the paper's §4 does not analyse."""
    F = _identity(2 * workers + 1, eta, alpha)
    v, x = 2 * i, 2 * i + 1
    # vⁱ ← δvⁱ − η(xⁱ + δvⁱ)
    F[..., v, v] = momentum * (1 - eta)
    F[..., v, x] = -eta
    # xⁱ ← xⁱ − α(xⁱ − x̃) + vⁱ, with the new vⁱ
    F[..., x, v] = F[..., v, v]
    F[..., x, x] = 1 - alpha - eta
    F[..., x, -1] = alpha
    # x̃ ← x̃ + α(xⁱ − x̃), with the old xⁱ
    F[..., -1, x] = alpha
    F[..., -1, -1] = 1 - alpha
    return F


def admm_dual(i: int, workers: int, eta: Array, rho: Array) -> Array:
    """F₁ⁱ of ADMM, equation 9."""
    F = _identity(2 * workers + 1, eta, rho)
    # λⁱ ← λⁱ − (xⁱ − x̃)
    F[..., 2 * i, 2 * i + 1] = -1
    F[..., 2 * i, -1] = 1
    return F


def admm_local(i: int, workers: int, eta: Array, rho: Array) -> Array:
    """F₂ⁱ of ADMM, equation 10."""
    F = _identity(2 * workers + 1, eta, rho)
    # xⁱ ← (xⁱ − ηxⁱ + ηρ(λⁱ + x̃))/(1 + ηρ)
    F[..., 2 * i + 1, 2 * i] = eta * rho / (1 + eta * rho)
    F[..., 2 * i + 1, 2 * i + 1] = (1 - eta) / (1 + eta * rho)
    F[..., 2 * i + 1, -1] = eta * rho / (1 + eta * rho)
    return F


def admm_centre(workers: int, eta: Array, rho: Array) -> Array:
    """F₃ⁱ of ADMM, equation 11: the same for every i."""
    F = _identity(2 * workers + 1, eta, rho)
    # x̃ ← (1/p)Σ(xⁱ − λⁱ)
    F[..., -1, 0:-1:2] = -1 / workers
    F[..., -1, 1:-1:2] = 1 / workers
    F[..., -1, -1] = 0
    return F


def admm(i: int, workers: int, eta: Array, rho: Array) -> Array:
    """Fⁱ = F₃ⁱF₂ⁱF₁ⁱ of ADMM."""
    arguments = (workers, eta, rho)
    return admm_centre(*arguments) @ admm_local(i, *arguments) @ admm_dual(i, *arguments)


def method_named(name: str, momentum: float) -> Map:
    """The map of a method; `momentum` is EAMSGD's δ."""
    methods: dict[str, Map] = {"easgd": easgd, "eamsgd": partial(eamsgd, momentum=momentum), "admm": admm}
    return methods[name]


def turn(method: Map, workers: int, eta: Array, strength: Array) -> Array:
    """G = S⁻¹F¹: the first worker's turn, then the workers renamed so that the next one is the first.

    As Fⁱ⁺¹ = SFⁱS⁻¹ with Sᵖ = 1, the composite map of a round is Fᵖ…F¹ = Gᵖ: one map to build instead of p.
    """
    F = method(0, workers, eta, strength)
    own = (F.shape[-1] - 1) // workers  # rows of a worker: x, or λ and x
    rows = np.append(np.roll(np.arange(own * workers), -own), own * workers)
    return F[..., rows, :]


def spectral_radius(method: Map, workers: int, eta: Array, strength: Array) -> Array:
    """Largest absolute eigenvalue of a round, Fᵖ…F¹: that of a turn to the power p. Shape of the scalars."""
    G = turn(method, workers, eta, strength)
    return np.abs(np.linalg.eigvals(G)).max(axis=-1) ** workers


def centre_trajectory(method: Map, workers: int, eta: float, strength: float, ticks: int) -> list[float]:
    """x̃ at global times 0 … ticks from the paper's start: λ = 0 or v = 0, every xⁱ = x̃ = 1000. The list
    ends early if a number overflows."""
    G = turn(method, workers, np.float64(eta), np.float64(strength))
    state = np.full(len(G), 1000.0)
    if len(G) == 2 * workers + 1:
        state[0:-1:2] = 0.0
    centre = [1000.0]
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(ticks):
            state = G @ state
            if not np.isfinite(state).all():
                break
            centre.append(float(state[-1]))
    return centre
