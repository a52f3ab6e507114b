"""DOWNPOUR."""

import numpy as np
import pytest

from mpitrain.algorithms.downpour import DownpourWorker
from mpitrain.algorithms.optimizers import Sgd, sgd

WHOLE = slice(None)


def test_one_worker_and_period_one_is_sgd() -> None:
    rng = np.random.default_rng(1)
    centre, theta = np.ones((2, 100), np.float32)
    worker, scratch = DownpourWorker(centre, Sgd()), np.empty(100, np.float32)
    for t in range(50):
        centre += worker.exchange(WHOLE, centre.copy(), t)
        noise = rng.normal(size=100).astype(np.float32)
        worker.step(WHOLE, worker.x + noise, 0.1, t, True)
        sgd.sgd(theta, theta + noise, scratch, eta=0.1)
    centre += worker.pending(WHOLE)
    assert centre.tobytes() == theta.tobytes()


@pytest.mark.parametrize("period", [1, 4])
def test_the_centre_receives_every_step_once(period: int) -> None:
    """With gradients that do not depend on x: x̃ = x₀ − ηΣg over all workers and steps, whatever τ."""
    g = np.random.default_rng(2).normal(size=(10, 3, 20))
    centre = np.zeros(20)
    workers = [DownpourWorker(centre, Sgd()) for _ in range(3)]
    for t in range(10):
        for i, worker in enumerate(workers):
            if t % period == 0:
                centre += worker.exchange(WHOLE, centre.copy(), t)
            worker.step(WHOLE, g[t, i], 0.1, t, t % period == 0)
    for worker in workers:
        centre += worker.pending(WHOLE)
    np.testing.assert_allclose(centre, -0.1 * g.sum(axis=(0, 1)), atol=1e-13)
