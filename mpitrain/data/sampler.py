"""The order in which samples are trained on: pure functions of the seed and a position.

Positions count samples, not minibatches, so that the minibatch size may change within an epoch and a resumed run
continues where it stopped: minibatch [start, start + count) of an epoch is that slice of the epoch's order.
"""

import numpy as np

from mpitrain.flat import Array
from mpitrain.sampling.rng import stream


def epoch_indices(seed: int, epoch: int, samples: int) -> Array:
    """The order of an epoch: a permutation of range(samples), int64, read-only."""
    return _frozen(stream(seed, "order", epoch).permutation(samples))


def independent_indices(seed: int, epoch: int, start: int, count: int, samples: int) -> Array:
    """`count` draws from range(samples), int64, with replacement, keyed by the minibatch's position (Chan & Lane 2014,
    §4.1: workers sample the data set independently)."""
    return stream(seed, "independent", epoch, start).integers(samples, size=count)


def chunked_indices(seed: int, epoch: int, samples: int, loaders: int, chunk: int) -> Array:
    """A permutation of range(samples), int64, read-only, that reads contiguously (EASGD's prefetch).

    Chunks of `chunk` neighbours come in random order, every `loaders`-th from the same loader. The samples of each
    `loaders` successive chunks, one from each loader, are shuffled together. The first chunk begins at random, at most
    at sample (samples mod chunk); the samples outside whole chunks come last.
    """
    rng = stream(seed, "chunks", epoch)
    whole, left = divmod(samples, chunk)
    starts = rng.permutation(whole) * chunk
    if left:
        first = int(rng.integers(left + 1))
        starts += first
    outside = [np.arange(first), np.arange(first + whole * chunk, samples)] if left else []
    order = np.concatenate([*(np.arange(start, start + chunk) for start in starts), *outside])
    for begin in range(0, samples, loaders * chunk):
        rng.shuffle(order[begin : begin + loaders * chunk])
    return _frozen(order)


def _frozen(order: Array) -> Array:
    order.flags.writeable = False
    return order
