"""A checksum that distinguishes replicas and is updated with every delta, in any order.

It is Σ c_i·k_i modulo 2⁶⁴ over the counts c of a replica, with fixed keys k_i; its updates commute like the deltas.
"""

import numpy as np
from numba import njit

from mpitrain.compression.residual import INDEX, NO_LEVELS, SIGN
from mpitrain.compression.thresholds import UNIT
from mpitrain.flat import Array

_MULTIPLIER, _SHIFT, _ONE = np.uint64(0x9E3779B97F4A7C15), np.uint64(29), np.uint64(1)


def of_replica(counts: Array, weights: Array) -> tuple[int, int]:
    """The digest of `counts` int32 [n], and the first index whose weight is not fl(count·UNIT), or −1."""
    total, wrong = _of_replica(counts, weights)
    return int(total), int(wrong)


def of_words(words: Array, step: int, levels: Array = NO_LEVELS) -> int:
    """The change of the digest by `apply(words, step, …, levels)`, to be added modulo 2⁶⁴."""
    return int(_of_words(words, levels, np.int64(step)))


@njit(cache=True, nogil=True)
def _of_replica(counts, weights):  # type: ignore[no-untyped-def]
    total = np.uint64(0)
    wrong = -1
    unit = np.float64(UNIT)
    kind = weights.dtype.type
    for i in range(counts.size):
        key = (np.uint64(i) + _ONE) * _MULTIPLIER
        total += np.uint64(np.int64(counts[i])) * (key ^ (key >> _SHIFT))
        if wrong < 0 and weights[i] != kind(counts[i] * unit):
            wrong = i
    return total, wrong


@njit(cache=True, nogil=True)
def _of_words(words, levels, step):  # type: ignore[no-untyped-def]
    total = np.uint64(0)
    up, down = np.uint64(step), np.uint64(-step)
    for j in range(words.size):
        word = words[j]
        key = (np.uint64(word & INDEX) + _ONE) * _MULTIPLIER
        change = (up if word & SIGN else down) * (key ^ (key >> _SHIFT))
        total += change * np.uint64(levels[j]) if levels.size else change
    return total
