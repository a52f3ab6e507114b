"""SGD and its momentum forms: bits that must agree, and hand-computed steps."""

from typing import Any

import numpy as np
import pytest

from mpitrain.algorithms.optimizers import sgd

RNG = np.random.default_rng(1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_momentum_gives_the_bits_of_sgd(dtype: Any) -> None:
    """Over classical and Nesterov's momentum and Krizhevsky's rule; for signed zeros too."""
    start, g = RNG.normal(size=(2, 1000)).astype(dtype)
    start[:4], g[:2], g[2:6] = (-0.0, 0.0, -0.0, 0.0), 0.0, -0.0
    scratch = np.empty_like(g)
    expected = start.copy()
    sgd.sgd(expected, g, scratch, eta=0.1)

    def check(rule, *velocity, **scalars: float) -> None:  # type: ignore[no-untyped-def]
        theta = start.copy()
        rule(theta, *velocity, g, scratch, eta=0.1, **scalars)
        assert theta.tobytes() == expected.tobytes(), rule.__name__

    v = RNG.normal(size=1000).astype(dtype)
    check(sgd.classical, v.copy(), mu=0.0)
    check(sgd.krizhevsky, v.copy(), mu=0.0, decay=0.0)


def test_krizhevsky_without_decay_gives_the_bits_of_classical_momentum() -> None:
    start, v, g = RNG.normal(size=(3, 1000)).astype(np.float32)
    theta, w, inc, scratch = start.copy(), start.copy(), v.copy(), np.empty_like(g)
    for _ in range(5):
        sgd.classical(theta, v, g, scratch, eta=0.01, mu=0.9)
        sgd.krizhevsky(w, inc, g, scratch, eta=0.01, mu=0.9, decay=0.0)
    assert theta.tobytes() == w.tobytes() and v.tobytes() == inc.tobytes()


def test_krizhevsky_by_hand() -> None:
    """inc = 0.5·4 − 0.25·0.5·8 − 0.5·2 = 0; then 0 − 0.125·8 − 1 = −2: all of it exact in binary."""
    w, inc, g, scratch = np.array([8.0]), np.array([4.0]), np.array([2.0]), np.empty(1)
    sgd.krizhevsky(w, inc, g, scratch, eta=0.5, mu=0.5, decay=0.25)
    assert (inc[0], w[0]) == (0.0, 8.0)
    sgd.krizhevsky(w, inc, g, scratch, eta=0.5, mu=0.5, decay=0.25)
    assert (inc[0], w[0]) == (-2.0, 6.0)


def test_nesterov_by_hand() -> None:
    """F = x²/2, x = 4, v = 0, μ = η = 1/2: look 4, v −2, x 2; look 1, v −1.5, x 0.5; look −0.25, v −0.625, x −0.125."""
    x, v, look, scratch = np.array([4.0]), np.zeros(1), np.empty(1), np.empty(1)
    seen = []
    for _ in range(3):
        sgd.look_ahead(look, x, v, 0.5)
        sgd.classical(x, v, look, scratch, eta=0.5, mu=0.5)
        seen.append((look[0], v[0], x[0]))
    assert seen == [(4.0, -2.0, 2.0), (1.0, -1.5, 0.5), (-0.25, -0.625, -0.125)]


def test_classical_is_the_heavy_ball() -> None:
    """Without a velocity: x_{t+1} = x_t − ηx_t + μ(x_t − x_{t−1})."""
    x, v, scratch = np.array([1.0]), np.zeros(1), np.empty(1)
    points = [1.0, 1.0]
    for _ in range(30):
        points.append(points[-1] - 0.1 * points[-1] + 0.9 * (points[-1] - points[-2]))
        sgd.classical(x, v, x.copy(), scratch, eta=0.1, mu=0.9)
        assert x[0] == pytest.approx(points[-1], abs=1e-14)
