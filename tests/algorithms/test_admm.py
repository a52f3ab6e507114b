"""Asynchronous ADMM against equations 9 to 11 as printed."""

import numpy as np
import pytest

from mpitrain.algorithms import admm, elastic
from mpitrain.algorithms.optimizers import sgd
from mpitrain.flat import Array

P, SIZE, ETA, RHO = 3, 10, 0.05, 2.5


class Workers:
    """P workers and the centre, driven by the rules; F(x) = |x|²/2. The centre is the mean of the contributions."""

    def __init__(self, x: Array, contribution: Array) -> None:
        self.x, self.centre, self.lam, self.v = x.copy(), contribution.mean(axis=0), np.zeros_like(x), np.zeros_like(x)
        self.contribution = contribution.copy()

    def turn(self, i: int, period: int = 1, delta: float | None = None) -> None:
        x, lam, centre, v = self.x[i], self.lam[i], self.centre.copy(), self.v[i]
        g, d, scratch = np.empty((3, *x.shape))
        admm.dual_ascent(lam, x, centre, scratch)
        for _ in range(period):
            sgd.look_ahead(g, x, v, delta or 0.0)
            if delta is not None:
                sgd.accelerate(v, g, scratch, eta=ETA, mu=delta)
            u = -ETA * g if delta is None else v
            admm.step(x, u, lam, centre, scratch, eta=ETA, rho=RHO)
        admm.centre_move(d, self.contribution[i], x, lam, scratch, workers=P)
        elastic.move_centre(self.centre, d)


def start() -> Array:
    return np.random.default_rng(1).normal(size=(P, SIZE))


@pytest.mark.parametrize("period", [1, 3])
def test_round_robin_equals_the_equations(period: int) -> None:
    """Equation 11 in full at every turn: the incremental centre is the same one."""
    x, lam = start(), np.zeros((P, SIZE))
    centre = x.mean(axis=0)
    workers = Workers(x, x)
    for t in range(60):
        i = t % P
        lam[i] = lam[i] - (x[i] - centre)
        for _ in range(period):
            x[i] = (x[i] - ETA * x[i] + ETA * RHO * (lam[i] + centre)) / (1 + ETA * RHO)
        centre = (x - lam).mean(axis=0)
        workers.turn(i, period)
        np.testing.assert_allclose(workers.x, x, atol=1e-12)
        np.testing.assert_allclose(workers.lam, lam, atol=1e-12)
        np.testing.assert_allclose(workers.centre, centre, atol=1e-12)


def test_no_momentum_gives_the_bits_of_the_step() -> None:
    plain, momentum = Workers(start(), np.zeros((P, SIZE))), Workers(start(), np.zeros((P, SIZE)))
    for t in range(30):
        plain.turn(t % P)
        momentum.turn(t % P, delta=0.0)
    assert plain.x.tobytes() == momentum.x.tobytes() and plain.centre.tobytes() == momentum.centre.tobytes()


def test_momentum_variant_keeps_the_optimum() -> None:
    """Also when workers start away from the centre, whose contributions start at it."""
    workers = Workers(start(), np.zeros((P, SIZE)))
    for t in range(3000):
        workers.turn(t % P, delta=0.5)
    assert np.abs(workers.centre).max() < 1e-3


def test_float32_keeps_what_agrees() -> None:
    """λ = 0 and x = x̃ is a fixed point without a gradient: rounding must not shrink the weights."""
    x = np.random.default_rng(2).normal(size=1000).astype(np.float32)
    before, zero, scratch = x.copy(), np.zeros_like(x), np.empty_like(x)
    admm.step(x, zero, zero, before, scratch, eta=0.001, rho=2.5)
    assert x.tobytes() == before.tobytes()
