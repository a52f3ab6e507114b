"""DOWNPOUR."""

import numpy as np
import pytest

from mpitrain.algorithms import downpour
from mpitrain.algorithms.optimizers import sgd


def test_one_worker_and_period_one_is_sgd() -> None:
    rng = np.random.default_rng(1)
    centre, theta, x = np.ones((3, 100), np.float32)
    v, scratch = np.zeros((2, 100), np.float32)
    for _ in range(50):
        downpour.push(centre, v)
        downpour.pull(x, v, centre)
        noise = rng.normal(size=100).astype(np.float32)
        downpour.step(x, v, np.float32(-0.1) * (x + noise))
        sgd.sgd(theta, theta + noise, scratch, eta=0.1)
    downpour.push(centre, v)
    assert centre.tobytes() == theta.tobytes()


@pytest.mark.parametrize("period", [1, 4])
def test_the_centre_receives_every_step_once(period: int) -> None:
    """With gradients that do not depend on x: x̃ = x₀ − ηΣg over all workers and steps, whatever τ."""
    g = np.random.default_rng(2).normal(size=(10, 3, 20))
    centre, x, v = np.zeros(20), np.zeros((3, 20)), np.zeros((3, 20))
    for t in range(10):
        for i in range(3):
            if t % period == 0:
                downpour.push(centre, v[i])
                downpour.pull(x[i], v[i], centre)
            downpour.step(x[i], v[i], -0.1 * g[t, i])
    for pending in v:
        downpour.push(centre, pending)
    np.testing.assert_allclose(centre, -0.1 * g.sum(axis=(0, 1)), atol=1e-13)
