"""Algorithm 1 of Chan & Lane, and MDOWNPOUR."""

import numpy as np
import pytest

from mpitrain.algorithms import server
from mpitrain.algorithms.optimizers import plain, sgd
from mpitrain.algorithms.roles import Merge


def test_hand_computed_messages() -> None:
    """η = 1/4, μ = β = 1/2 and messages (∇, j): every number is exact in binary.

    i=0 (8, 0): α=1    v = −2                     Θ = 10 − 2 = 8
    i=1 (8, 0): α=1/2  v = −1 − 1 = −2            Θ = 6
    i=2 (16, 0): α=1/4 v = −1 − 1 = −2            Θ = 4
    i=3 (−4, 2): α=1/2 v = −1 + 1/2 = −1/2        Θ = 3.5
    i=4 (2, 4): α=1    v = −1/4 − 1/2 = −3/4      Θ = 2.75
    """
    theta, v, scratch = np.array([10.0], np.float32), np.zeros(1, np.float32), np.empty(1, np.float32)
    rule, seen = server.ServerRule(0.5, 0.5, plain), []
    for i, (gradient, j) in enumerate([(8, 0), (8, 0), (16, 0), (-4, 2), (2, 4)]):
        at = Merge(0.25, i - j, i)
        rule.merge({"theta": theta, "velocity": v}, np.array([gradient], np.float32), scratch, at)
        seen.append((float(v[0]), float(theta[0])))
    assert seen == [(-2, 8), (-2, 6), (-2, 4), (-0.5, 3.5), (-0.75, 2.75)]


def test_decay_counts_from_the_workers_index() -> None:
    assert server.decay(7, 7, 0.9) == 1.0
    assert server.decay(9, 7, 0.9) == pytest.approx(0.81)
    assert server.decay(9, 7, 1.0) == 1.0
    with pytest.raises(ValueError, match="index 8"):
        server.decay(7, 8, 0.9)


def test_velocity_is_kept_while_momentum_is_zero() -> None:
    """Momentum may depend on i: a schedule that starts at 0 finds the last step in v."""
    theta, v, scratch, rule = np.array([0.0]), np.array([5.0]), np.empty(1), server.ServerRule(0.9, 1.0, plain)
    for mu in (0.0, 0.5):
        rule.merge({"theta": theta, "velocity": v}, np.array([8.0]), scratch, Merge(0.25, 0, 0, momentum=mu))
    assert (v[0], theta[0]) == (-3.0, -5.0)


def test_the_sum_of_local_gradients_moves_the_server_as_far_as_the_worker() -> None:
    """μ = 0, α = 1: sending the plain sum of n gradients brings Θ to the worker's θ, in the same direction."""
    rng = np.random.default_rng(2)
    theta, worker, total, scratch = np.ones(50), np.ones(50), np.zeros(50), np.empty(50)
    for _ in range(3):
        g = worker - rng.normal(size=50)
        total += g
        sgd.sgd(worker, g, scratch, eta=0.1)
    server.ServerRule(0.0, 1.0, plain).merge({"theta": theta}, total, scratch, Merge(0.1, 0, 0))
    np.testing.assert_allclose(theta, worker, atol=1e-15)


def test_mdownpour_with_one_worker_is_nesterov() -> None:
    rng = np.random.default_rng(3)
    curvature = rng.uniform(0.5, 2, size=20)
    x, v, look = np.ones(20), np.zeros(20), np.empty(20)
    y, velocity, model, scratch = np.ones(20), np.zeros(20), np.empty(20), np.empty(20)
    for _ in range(200):
        sgd.look_ahead(look, x, v, 0.9)
        np.testing.assert_allclose(y, look, atol=1e-13)
        sgd.classical(x, v, curvature * look, scratch, eta=0.1, mu=0.9)
        sgd.mdownpour(y, velocity, curvature * y, scratch, eta=0.1, delta=0.9)
        sgd.look_ahead(model, y, velocity, -0.9)
        np.testing.assert_allclose(model, x, atol=1e-13)


def test_mdownpour_without_momentum_is_sgd() -> None:
    g = np.random.default_rng(4).normal(size=100)
    y, theta, v, scratch = np.ones(100), np.ones(100), np.zeros(100), np.empty(100)
    sgd.mdownpour(y, v, g, scratch, eta=0.1, delta=0.0)
    sgd.sgd(theta, g, scratch, eta=0.1)
    assert y.tobytes() == theta.tobytes()
