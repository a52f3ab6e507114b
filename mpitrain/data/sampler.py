"""The order in which samples are trained on: pure functions of the seed and a position.

Positions count samples, not minibatches, so that the minibatch size may change within an epoch and a resumed run
continues where it stopped: minibatch [start, start + count) of an epoch is that slice of the epoch's order.
"""

from functools import lru_cache

import numpy as np

from mpitrain.flat import Array
from mpitrain.rng import stream

CHUNK = 512  # samples that one loader delivers at a time (as in the EASGD authors' code)


@lru_cache(maxsize=2)
def epoch_indices(seed: int, epoch: int, samples: int) -> Array:
    """The order of an epoch: a permutation of range(samples), int64, read-only."""
    return _frozen(stream(seed, "order", epoch).permutation(samples))


def independent_indices(seed: int, epoch: int, start: int, count: int, samples: int) -> Array:
    """`count` draws from range(samples), int64, with replacement, keyed by the minibatch's position (Chan & Lane 2014,
    §4.1: workers sample the data set independently)."""
    return stream(seed, "independent", epoch, start).integers(samples, size=count)


@lru_cache(maxsize=2)
def chunked_indices(seed: int, epoch: int, samples: int, loaders: int, chunk: int = CHUNK) -> Array:
    """A permutation of range(samples), int64, read-only, that reads contiguously (EASGD's prefetch).

    Chunks of neighbours come in random order; one chunk from each of `loaders` loaders is shuffled together at a time.
    """
    rng = stream(seed, "chunks", epoch)
    starts = rng.permutation(-(-samples // chunk)) * chunk
    order = np.concatenate([np.arange(start, min(start + chunk, samples)) for start in starts])
    for begin in range(0, samples, loaders * chunk):
        rng.shuffle(order[begin : begin + loaders * chunk])
    return _frozen(order)


def _frozen(order: Array) -> Array:
    order.flags.writeable = False
    return order
