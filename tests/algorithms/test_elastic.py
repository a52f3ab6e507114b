"""EASGD and EAMSGD against the equations, written out with whole arrays."""

from typing import Any

import numpy as np
import pytest

from mpitrain.algorithms import averaging, elastic
from mpitrain.algorithms.elastic import Easgd
from mpitrain.algorithms.optimizers import sgd
from mpitrain.flat import Array

P, SIZE, ETA = 4, 30, 0.05


def gradients(seed: int, steps: int) -> Array:
    return np.random.default_rng(seed).normal(size=(steps, P, SIZE))


def turn(x: Array, centre: Array, g: Array, v: Array | None, alpha: float, delta: float = 0.0) -> None:
    """One worker's exchange and step, with EAMSGD when there is a velocity."""
    d, scratch = np.empty_like(x), np.empty_like(x)
    elastic.elastic_difference(d, x, centre, alpha=alpha)
    elastic.move_centre(centre, d)
    elastic.give_up(x, d)
    if v is None:
        sgd.sgd(x, g, scratch, eta=ETA)
    else:
        sgd.classical(x, v, g, scratch, eta=ETA, mu=delta)


def test_no_moving_rate_leaves_independent_sgds() -> None:
    x, alone, centre, scratch = np.ones((P, SIZE)), np.ones((P, SIZE)), np.ones(SIZE), np.empty(SIZE)
    for g in gradients(1, 50):
        for i in range(P):
            turn(x[i], centre, g[i], None, alpha=0.0)
            sgd.sgd(alone[i], g[i], scratch, eta=ETA)
    assert x.tobytes() == alone.tobytes()
    assert np.array_equal(centre, np.ones(SIZE))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_eamsgd_without_momentum_has_the_bits_of_easgd(dtype: Any) -> None:
    x, y = np.ones((2, P, SIZE), dtype)
    v, (centre, other) = np.zeros((P, SIZE), dtype), np.ones((2, SIZE), dtype)
    for g in gradients(2, 50).astype(dtype):
        for i in range(P):
            turn(x[i], centre, g[i], None, alpha=0.2)
            turn(y[i], other, g[i], v[i], alpha=0.2, delta=0.0)
    assert x.tobytes() == y.tobytes() and centre.tobytes() == other.tobytes()


@pytest.mark.parametrize("delta", [0.0, 0.9])
def test_synchronous_equals_the_equations(delta: float) -> None:
    """Equations 5, 6 (δ = 0) and 7, for 50 steps on |x|²/2 with noise, against the paper's own form of them."""
    alpha, noise = 0.2, gradients(4, 50)
    x, centre, v = np.linspace(-1, 1, P * SIZE).reshape(P, SIZE), np.zeros(SIZE), np.zeros((P, SIZE))
    X, C, V = x.copy(), centre.copy(), v.copy()
    d, scratch = np.empty(SIZE), np.empty(SIZE)
    for n in noise:
        G = X + delta * V + n
        V = delta * V - ETA * G
        X, C = X + V - alpha * (X - C), (1 - P * alpha) * C + P * alpha * (1 / P) * X.sum(axis=0)
        g, mean, old = x + delta * v + n, x.mean(axis=0), centre.copy()
        averaging.moving_average(centre, mean, scratch, rate=P * alpha)
        for i in range(P):
            elastic.elastic_difference(d, x[i], old, alpha=alpha)
            elastic.give_up(x[i], d)
            sgd.classical(x[i], v[i], g[i], scratch, eta=ETA, mu=delta)
        np.testing.assert_allclose(x, X, atol=1e-13)
        np.testing.assert_allclose(centre, C, atol=1e-13)


def test_the_elastic_force_is_symmetric() -> None:
    """Without gradients nothing enters or leaves: Σxⁱ + x̃ stays, in any order of turns."""
    rng = np.random.default_rng(5)
    x, centre, zero = rng.normal(size=(P, SIZE)), rng.normal(size=SIZE), np.zeros(SIZE)
    total = x.sum(axis=0) + centre
    for i in rng.integers(P, size=200):
        turn(x[i], centre, zero, None, alpha=0.3)
        np.testing.assert_allclose(x.sum(axis=0) + centre, total, atol=1e-13)


def test_round_robin_is_the_power_of_a_linear_map() -> None:
    """On x²/2 a round is F = F³F²F¹ with the paper's symmetric maps."""
    p, alpha = 3, 0.25
    maps = []
    for i in range(p):
        F = np.eye(p + 1)
        F[np.ix_([i, p], [i, p])] = [[1 - ETA - alpha, alpha], [alpha, 1 - alpha]]
        maps.append(F)
    start = np.array([1.0, -2.0, 3.0, 10.0])
    x, centre = start[:p].reshape(p, 1).copy(), start[p:].copy()
    for rounds in range(1, 41):
        for i in range(p):
            turn(x[i], centre, x[i].copy(), None, alpha)
        expected = np.linalg.matrix_power(maps[2] @ maps[1] @ maps[0], rounds) @ start
        np.testing.assert_allclose(np.append(x, centre), expected, atol=1e-13)


def test_moving_rates() -> None:
    """α = β/p, which is not divided by τ; α = ηρ; or α itself."""
    assert Easgd(beta=0.9, tau=7).moving_rate(0.1, 4) == 0.225
    assert Easgd(rho=2.5).moving_rate(0.001, 4) == 0.0025
    assert Easgd(alpha=0.3).moving_rate(0.1, 4) == 0.3


def test_a_workers_rate_decays_with_its_time() -> None:
    assert Easgd(rate_decay=1e-3).own_rate(0.1, 0) == 0.1
    assert Easgd(rate_decay=1e-3).own_rate(0.1, 3000) == pytest.approx(0.05)
