"""What holds for every optimizer: increments and steps agree to the bit, on any slice; the past can be forgotten."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from mpitrain import config as configuration
from mpitrain.algorithms import Algorithm
from mpitrain.algorithms.optimizers import OPTIMIZERS as REGISTERED
from mpitrain.algorithms.optimizers import Descent, Momentum, Nesterov, Optimizer, Sgd, plain, with_momentum
from mpitrain.algorithms.optimizers.adamw import AdamWOptions
from mpitrain.algorithms.optimizers.lion import LionOptions
from mpitrain.flat import Array

OPTIMIZERS: dict[str, Callable[[], Optimizer]] = {
    **{name: lambda kind=kind: kind().make(plain) for name, kind in REGISTERED.items()},  # type: ignore[misc]
    "adamw without decay": lambda: AdamWOptions(weight_decay=0.0).make(plain),
}
every_optimizer = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
both_dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def descended(optimizer: Optimizer, x: Array, steps: int, parts: int = 1) -> Descent:
    """`steps` steps on |x|²/2 with noise, each in so many parts."""
    local, rng = Descent(optimizer, x.copy()), np.random.default_rng(1)
    ends = np.linspace(0, x.size, parts + 1).astype(int)
    for t in range(steps):
        g = local.at + rng.standard_normal(x.size).astype(x.dtype)
        for begin, end in pairwise(ends):
            local.step(slice(begin, end), g[begin:end], 0.05, t)
    return local


@every_optimizer
@both_dtypes
def test_parts_give_the_bits_of_the_whole(make: Callable[[], Optimizer], dtype: Any) -> None:
    x = np.linspace(-2, 2, 1009).astype(dtype)
    whole, parts = descended(make(), x, 5), descended(make(), x, 5, parts=7)
    assert whole.x.tobytes() == parts.x.tobytes() and whole.at.tobytes() == parts.at.tobytes()
    assert whole.x.dtype == dtype and all(buffer.dtype == dtype for buffer in whole.buffers.values())


@every_optimizer
@both_dtypes
def test_a_step_adds_the_increment(make: Callable[[], Optimizer], dtype: Any) -> None:
    x = np.linspace(-2, 2, 100).astype(dtype)
    one, other, rng = Descent(make(), x.copy()), Descent(make(), x.copy()), np.random.default_rng(2)
    for t in range(4):
        g = rng.standard_normal(100).astype(dtype)
        one.step(slice(0, 100), g, 0.1, t)
        u = other.increment(slice(0, 100), g, 0.1, t)
        np.add(other.x, u, out=other.x)
        other.look()
    assert one.x.tobytes() == other.x.tobytes() and one.at.tobytes() == other.at.tobytes()


@every_optimizer
def test_a_restart_forgets_the_past(make: Callable[[], Optimizer]) -> None:
    x = np.linspace(-2, 2, 100)
    used, new = descended(make(), x, 3), Descent(make(), x.copy())
    used.restart(slice(0, 100), x)
    for t in range(3):
        for local in (used, new):
            local.step(slice(0, 100), local.at * 0.5, 0.1, t)
    assert used.x.tobytes() == new.x.tobytes()


@every_optimizer
def test_nothing_but_the_buffers_is_remembered(make: Callable[[], Optimizer]) -> None:
    """What a checkpoint keeps is enough to go on: another optimizer with these buffers takes the same steps."""
    local = descended(make(), np.linspace(-2, 2, 100), 3)
    again = Descent(make(), local.x.copy(), {name: buffer.copy() for name, buffer in local.buffers.items()})
    g = np.random.default_rng(3).standard_normal(100)
    for each in (local, again):
        each.step(slice(0, 100), g, 0.1, 3)
    assert local.x.tobytes() == again.x.tobytes() and local.at.tobytes() == again.at.tobytes()


@every_optimizer
@both_dtypes
def test_converges_on_a_quadratic(make: Callable[[], Optimizer], dtype: Any) -> None:
    local = Descent(make(), np.linspace(-3, 3, 11).astype(dtype))
    for t in range(400):
        local.step(slice(0, 11), local.at.copy(), 0.05, t)
    assert np.abs(local.x).max() < 1e-3


def test_momentum_by_hand() -> None:
    """μ = ½, η = ¼, g = x at the point asked for; all numbers are exact in binary.

    Classical: v = −¼·8 = −2, x = 6; v = ½·(−2) − ¼·6 = −2.5, x = 3.5.
    Nesterov: v = −2, x = 6; g at 6 − 1 = 5: v = −1 − 1.25 = −2.25, x = 3.75.
    """
    for optimizer, expected in ((Momentum(0.5), 3.5), (Nesterov(0.5), 3.75)):
        local = Descent(optimizer, np.array([8.0]))
        for t in range(2):
            local.step(slice(0, 1), local.at.copy(), 0.25, t)
        assert local.x[0] == expected


def chosen(*settings: str) -> Algorithm:
    return configuration.load(None, [f"algorithm.{setting}" for setting in settings]).algorithm


def test_a_chosen_optimizer_is_the_one_that_algorithms_have_of_their_own() -> None:
    """To the bit: `easgd` with Nesterov's momentum is `eamsgd`, `allreduce` with μ = 0.9 is its default."""
    x = np.linspace(-2, 2, 100)
    for one, other in (
        (chosen("name=eamsgd"), chosen("name=easgd", "optimizer.name=nesterov")),
        (chosen("name=allreduce"), chosen("name=allreduce", "optimizer.name=nesterov")),
        (chosen("name=allreduce", "nesterov=false"), chosen("name=sgd", "optimizer.name=momentum")),
        (chosen("name=easgd-sync"), chosen("name=easgd-sync", "optimizer.name=sgd")),
    ):
        assert descended(one.optimizer(), x, 5).x.tobytes() == descended(other.optimizer(), x, 5).x.tobytes()


def test_no_momentum_is_sgd_and_keeps_no_velocity() -> None:
    for nesterov in (True, False):
        assert type(with_momentum(0.0, nesterov)) is Sgd
    assert Sgd().buffers(np.zeros(3)) == {}


@both_dtypes
def test_lion_by_hand(dtype: Any) -> None:
    """β₁ = 0.5, β₂ = 0.75, λ = 0.5, η = 0.1; x = (1, −2, 0), g = (4, −1, 0): u = −0.1(1 + 0.5, −1 − 1, 0), m = g/4.
    Then g = (−0.5, 2, 1): means (0.25, 0.875, 0.5), signs all 1."""
    local = Descent(LionOptions(beta1=0.5, beta2=0.75, weight_decay=0.5).make(plain), np.array([1, -2, 0], dtype))
    local.step(slice(0, 3), np.array([4, -1, 0], dtype), 0.1, 0)
    np.testing.assert_allclose(local.x, [0.85, -1.8, 0.0], rtol=1e-6)
    np.testing.assert_allclose(local.buffers["momentum"], [1.0, -0.25, 0.0], rtol=1e-6)
    local.step(slice(0, 3), np.array([-0.5, 2, 1], dtype), 0.1, 1)
    np.testing.assert_allclose(local.x, [0.85 - 0.1425, -1.8 - 0.01, -0.1], rtol=1e-6)
