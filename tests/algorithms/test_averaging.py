"""Averages over time."""

from typing import Any

import numpy as np
import pytest

from mpitrain.algorithms import averaging
from mpitrain.algorithms.synchronous import Averaged


@pytest.mark.parametrize("dtype, tolerance", [(np.float32, 1e-5), (np.float64, 1e-14)])
def test_running_average_is_the_mean_so_far(dtype: Any, tolerance: float) -> None:
    points = np.random.default_rng(1).normal(size=(200, 30)).astype(dtype)
    z, scratch = points[0].copy(), np.empty(30, dtype)
    for t, theta in enumerate(points):
        averaging.moving_average(z, theta, scratch, rate=Averaged().averaging_rate(t))
        np.testing.assert_allclose(z, points[: t + 1].mean(axis=0, dtype=np.float64), atol=tolerance)


def test_moving_average_by_hand() -> None:
    """a = 1/4: 8 → 0.75·8 + 0.25·4 = 7 → 0.75·7 + 0.25·(−1) = 5."""
    z, scratch = np.array([8.0]), np.empty(1)
    averaging.moving_average(z, np.array([4.0]), scratch, rate=0.25)
    assert z[0] == 7.0
    averaging.moving_average(z, np.array([-1.0]), scratch, rate=0.25)
    assert z[0] == 5.0


def test_the_average_of_a_constant_is_that_constant() -> None:
    """In float32 also after many updates: 1 − a and a rounded apart would scale it."""
    theta = np.random.default_rng(2).normal(size=100).astype(np.float32)
    z, scratch = theta.copy(), np.empty_like(theta)
    for t in range(1_000_000, 1_001_000):
        averaging.moving_average(z, theta, scratch, rate=Averaged().averaging_rate(t))
        averaging.moving_average(z, theta, scratch, rate=0.001)
    assert z.tobytes() == theta.tobytes()
