"""The order in which samples are trained on: pure functions of the seed and a position.

Positions count samples, not minibatches, so that the minibatch may change in mid-epoch and a resumed run goes on where
it stopped: minibatch [start, start + count) of an epoch is that slice of the epoch's order.
"""

from functools import lru_cache

import numpy as np

from mpitrain.flat import Array
from mpitrain.rng import stream

CHUNK = 512  # samples that one loader hands over at a time (author's code of EASGD)


@lru_cache(maxsize=2)
def epoch_indices(seed: int, epoch: int, samples: int) -> Array:
    """A permutation of range(samples), int64, read-only: the order of an epoch. Each sample comes exactly once."""
    return _frozen(stream(seed, "order", epoch).permutation(samples))


def independent_indices(seed: int, epoch: int, start: int, count: int, samples: int) -> Array:
    """`count` draws from range(samples), int64, with replacement, keyed by the minibatch's position (Chan & Lane 2014,
    §4.1: workers sample the data set independently)."""
    return stream(seed, "independent", epoch, start).integers(samples, size=count)


@lru_cache(maxsize=2)
def chunked_indices(seed: int, epoch: int, samples: int, loaders: int, chunk: int = CHUNK) -> Array:
    """A permutation of range(samples), int64, read-only, that reads contiguously (EASGD's prefetch).

    Chunks of neighbours come in random order; each time one from each of `loaders` loaders, shuffled together.
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
