"""Update rules in one pass: the bits of the rules, subnormals and signs of zero included."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mpitrain.kernels.launch import Kernels

#: The last is more than the threads of the largest grid on the host.
SIZES = [0, 1, 255, 256, 257, 9000]
ETA, MU = 0.013, 0.9

CASES = {
    "sgd": (2, {"eta": ETA}),
    "classical": (3, {"eta": ETA, "mu": MU}),
    "krizhevsky": (3, {"eta": ETA, "mu": MU, "decay": 0.0005}),
    "mdownpour": (3, {"eta": ETA, "delta": MU}),
    "adamw": (4, {"eta": ETA, "t": 4, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "decay": 0.01}),
    "moving_average": (2, {"rate": 0.001}),
}
WITHOUT_MOMENTUM = {
    "classical": (3, {"eta": ETA, "mu": 0.0}),
    "krizhevsky": (3, {"eta": ETA, "mu": 0.0, "decay": 0.0}),
    "mdownpour": (3, {"eta": ETA, "delta": 0.0}),
    "adamw": (4, {"eta": ETA, "t": 0, "beta1": 0.0, "beta2": 0.0, "epsilon": 1e-8, "decay": 0.0}),
}


def vectors(count: int, size: int, dtype: type = np.float32) -> list[np.ndarray]:
    """Vectors of numbers of all sizes: products that need rounding, subnormals, zeros of both signs, infinities."""
    rng = np.random.default_rng(count * size)
    tiny = np.finfo(dtype).tiny
    odd = np.array([0.0, -0.0, tiny, -tiny / 3, tiny / 7, np.inf, -np.inf, np.nan, 1e30], dtype)
    made = []
    for _ in range(count):
        vector = rng.standard_normal(size).astype(dtype)
        where = rng.random(size) < 0.2
        vector[where] = rng.choice(odd, where.sum())
        made.append(vector)
    return made


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", CASES)
def test_the_bits_of_the_rule(compare: Callable[..., list[Any]], name: str, dtype: type) -> None:
    count, scalars = CASES[name]
    for size in SIZES if dtype is np.float32 else [257]:
        compare(name, *vectors(count, size, dtype), **scalars)


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow")
@pytest.mark.parametrize("name", WITHOUT_MOMENTUM)
def test_no_momentum(compare: Callable[..., list[Any]], name: str) -> None:
    """A velocity of NaN or infinity is forgotten, as on the CPU."""
    count, scalars = WITHOUT_MOMENTUM[name]
    compare(name, *vectors(count, 257), **scalars)


def test_rules_of_other_arguments(compare: Callable[..., list[Any]]) -> None:
    x, v, g, at = np.random.default_rng(0).standard_normal((4, 300)).astype(np.float32)
    compare("look_ahead", at, x, v, MU)
    compare("add_scaled", x, g, 1e-4)


def test_vectors_must_match(xp: Any, kernels: Kernels) -> None:
    three, four = xp.zeros(3, np.float32), xp.zeros(4, np.float32)
    with pytest.raises(ValueError, match="sgd: vectors"):
        kernels.sgd(three, four, eta=1.0)
    with pytest.raises(ValueError, match="float64"):
        kernels.sgd(three, xp.zeros(3, np.float64), eta=1.0)
    with pytest.raises(ValueError, match="not contiguous"):
        kernels.sgd(three[:2], four[::2], eta=1.0)
