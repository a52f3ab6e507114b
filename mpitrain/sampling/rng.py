"""Random streams keyed by their purpose, not by the rank that draws from them.

Every draw is a pure function of (seed, purpose, key): a run with another number of ranks, or a resumed one, draws the
same numbers for the same minibatch.
"""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from zlib import crc32

import numpy as np

from mpitrain.flat import Array


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
    torch = sys.modules.get("torch")
    drawn = None if torch is None else torch.get_rng_state()
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002
        if torch is not None:
            torch.set_rng_state(drawn)
