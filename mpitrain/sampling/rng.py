"""Random streams keyed by their purpose, not by the rank that draws from them.

Every draw is a pure function of (seed, purpose, key): a run with another number of ranks, or a resumed one, draws the
same numbers for the same minibatch.
"""

import random
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from typing import Any, TypeVar
from zlib import crc32

import numpy as np

from mpitrain.flat import Array

Item = TypeVar("Item")


def stream(seed: int, purpose: str, *key: int) -> np.random.Generator:
    """The generator for one purpose ("order", "dropout", "initial") and key, such as (epoch, minibatch)."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, crc32(purpose.encode()), *key))))


@lru_cache(maxsize=2)
def _philox_key(seed: int, purpose: str, key: tuple[int, ...]) -> Array:
    return np.random.SeedSequence((seed, crc32(purpose.encode()), *key)).generate_state(2, np.uint64)


def uniforms(seed: int, purpose: str, key: tuple[int, ...], start: int, out: Array) -> None:
    """Fill float64 `out` [n, 4·m] with the numbers in [0, 1) of the positions start … start + n of a stream.

    The numbers of a position do not depend on whether they are drawn alone or together with others.
    """
    blocks = out.shape[1] // 4  # Philox makes four numbers from each value of its counter
    generator = np.random.Philox(key=_philox_key(seed, purpose, key), counter=start * blocks)
    np.random.Generator(generator).random(out=out)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Leave a caller's own draws as they would have been: Python's, NumPy's old generator and PyTorch's on the CPU
    go on after the context where they were before it."""
    theirs = _states()
    try:
        yield
    finally:
        _go_on(theirs)


def drawn_apart(items: Iterable[Item], seed: Callable[[], None]) -> Iterator[Item]:
    """The items, each made when it is asked for. What that draws from the generators of `undisturbed` is a stream of
    its own, seeded by `seed`; a caller's own draws stay as they would have been."""
    with undisturbed():
        seed()
        left, own = iter(items), _states()
    while True:
        with undisturbed():
            _go_on(own)
            found = list(islice(left, 1))
            own = _states()
        if not found:
            return
        yield found[0]


def _states() -> tuple[Any, Any, Any]:
    torch = sys.modules.get("torch")
    return None if torch is None else torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002


def _go_on(states: tuple[Any, Any, Any]) -> None:
    for_torch, for_numpy, for_python = states
    random.setstate(for_python)
    np.random.set_state(for_numpy)  # noqa: NPY002
    if for_torch is not None:
        sys.modules["torch"].set_rng_state(for_torch)
