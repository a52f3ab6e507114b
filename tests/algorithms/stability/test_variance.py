"""The noise of the centre: closed forms, and simulations by the rules."""

import numpy as np
import pytest

from mpitrain.algorithms import averaging, elastic
from mpitrain.algorithms.optimizers import sgd
from mpitrain.algorithms.stability import variance
from mpitrain.flat import Array


@pytest.mark.parametrize("eta", [0.01, 0.5, 1.9])
def test_a_single_worker_has_the_variance_of_sgd(eta: float) -> None:
    """V = (1 − η)²V + η²."""
    assert variance.single(eta) == pytest.approx(eta**2 / (1 - (1 - eta) ** 2))


def test_a_single_worker_with_momentum_by_hand() -> None:
    """x_t+1 = (1 + δ)(1 − η)x_t − δ(1 − η)x_t−1 − ηξ is an autoregression of order two, whose variance is known."""
    eta, delta = 0.1, 0.9
    a, b = (1 + delta) * (1 - eta), -delta * (1 - eta)
    expected = eta**2 * (1 - b) / ((1 + b) * (1 - a - b) * (1 + a - b))
    assert variance.single(eta, delta) == pytest.approx(expected)


@pytest.mark.parametrize("eta, beta", [(0.1, 0.9), (0.5, 0.2), (1.5, 0.9)])
def test_many_workers_have_the_variance_of_the_closed_form(eta: float, beta: float) -> None:
    """With p → ∞ at a fixed β = pα the centre is a moving average of the mean of independent SGD workers.

    Then p times the variance is Corollary 3.1 of the paper's longer version (arXiv:1412.6651) with curvature 1.
    """
    workers = 10**7
    limit = beta * eta / ((2 - beta) * (2 - eta)) * (2 - beta - eta + beta * eta) / (beta + eta - beta * eta)
    assert workers * variance.synchronous(workers, eta, beta / workers).centre == pytest.approx(limit, rel=1e-5)


def test_the_centre_equals_the_mean_where_it_takes_the_mean() -> None:
    """One worker and α = β = 1: x̃ becomes x of a step ago, so both have the same variance."""
    both = variance.synchronous(1, 0.3, 1.0)
    assert both.centre == pytest.approx(both.mean)


def test_no_variance_is_finite_where_the_map_is_unstable() -> None:
    assert variance.synchronous(4, 2.5, 0.1) == (np.inf, np.inf)
    assert variance.round_robin(4, 2.5, 0.1) == (np.inf, np.inf)


SETTINGS = [(4, 0.1, 0.225, 0.0), (4, 0.1, 0.225, 0.9), (3, 0.5, 0.1, 0.5)]
RUNS, STEPS = 20_000, 300  # independent runs, and steps after which they have forgotten their start


def step(x: Array, v: Array, d: Array, rng: np.random.Generator, eta: float, delta: float) -> None:
    """A worker's own step, in RUNS independent runs at once."""
    at = np.empty_like(x)
    sgd.look_ahead(at, x, v, delta)
    v[:] = delta * v - eta * (at + rng.standard_normal(len(x)))
    elastic.give_up(x, d)
    x += v


@pytest.mark.parametrize("workers, eta, alpha, delta", SETTINGS)
def test_a_simulation_of_the_synchronous_scheme_agrees(workers: int, eta: float, alpha: float, delta: float) -> None:
    rng = np.random.default_rng(1)
    x, v, d = np.zeros((workers, RUNS)), np.zeros((workers, RUNS)), np.empty(RUNS)
    centre, scratch = np.zeros(RUNS), np.empty(RUNS)
    for _ in range(STEPS):
        mean, before = x.mean(axis=0), centre.copy()
        averaging.moving_average(centre, mean, scratch, rate=workers * alpha)
        for i in range(workers):
            elastic.elastic_difference(d, x[i], before, alpha=alpha)
            step(x[i], v[i], d, rng, eta, delta)
    expected = variance.synchronous(workers, eta, alpha, delta)
    assert centre.var() == pytest.approx(expected.centre, rel=0.05)  # five standard errors
    assert x.mean(axis=0).var() == pytest.approx(expected.mean, rel=0.05)


@pytest.mark.parametrize("workers, eta, alpha, delta", SETTINGS)
def test_a_simulation_in_round_robin_order_agrees(workers: int, eta: float, alpha: float, delta: float) -> None:
    rng = np.random.default_rng(2)
    x, v, d, centre = np.zeros((workers, RUNS)), np.zeros((workers, RUNS)), np.empty(RUNS), np.zeros(RUNS)
    for t in range(workers * STEPS):
        i = t % workers
        elastic.elastic_difference(d, x[i], centre, alpha=alpha)
        elastic.move_centre(centre, d)
        step(x[i], v[i], d, rng, eta, delta)
    expected = variance.round_robin(workers, eta, alpha, delta)
    assert centre.var() == pytest.approx(expected.centre, rel=0.05)
    assert x.mean(axis=0).var() == pytest.approx(expected.mean, rel=0.05)
