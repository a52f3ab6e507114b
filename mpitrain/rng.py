"""Random streams keyed by what they are for, not by who draws from them.

Every draw is a pure function of (seed, purpose, key): a run with another number of ranks, or a resumed one, draws
the same numbers for the same minibatch.
"""

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
    """Fill float64 `out` [n, 4·m] with numbers in [0, 1): those of the places start … start + n of one stream.

    A place has its own numbers, whoever draws them, alone or with its neighbours.
    """
    blocks = out.shape[1] // 4  # Philox makes four numbers from each value of its counter
    generator = np.random.Philox(key=_philox_key(seed, purpose, key), counter=start * blocks)
    np.random.Generator(generator).random(out=out)
