"""Random streams keyed by what they are for, not by who draws from them.

Every draw is a pure function of (seed, purpose, key): a run with another number of ranks, or a resumed one, draws
the same numbers for the same minibatch.
"""

from zlib import crc32

import numpy as np


def stream(seed: int, purpose: str, *key: int) -> np.random.Generator:
    """The generator for one purpose ("order", "dropout", "initial") and key, such as (epoch, minibatch)."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, crc32(purpose.encode()), *key))))
