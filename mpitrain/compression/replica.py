"""Apply emitted elements to a replica: to integer counts, and to the float weights that they represent.

This is the "dead reckoning" of Strom 2015, §2.3, for own and peers' words alike (§2.6 steps 1 and 9).

A digest distinguishes replicas and is updated with every delta, in any order. It is Σ c_i·k_i modulo 2⁶⁴ over the
counts c of a replica, with fixed keys k_i; its updates commute like the deltas.
"""

import numpy as np
from numba import njit

from mpitrain.compression.residual import INDEX, NO_LEVELS, SIGN
from mpitrain.compression.thresholds import COUNT_MAX, UNIT
from mpitrain.errors import TrainingFailed
from mpitrain.flat import Array

_MULTIPLIER, _SHIFT, _ONE = np.uint64(0x9E3779B97F4A7C15), np.uint64(29), np.uint64(1)


def apply(words: Array, step: int, counts: Array, weights: Array, levels: Array = NO_LEVELS) -> None:
    """counts −= step·level·sign, downhill, and weights ← fl(counts·UNIT), at the touched positions only.

    `words` and `levels` uint32 [k] as `accumulate` or `decode` gave them (without levels, each is 1), `step` the
    sender's `integer_step`, `counts` int32 [n], `weights` float [n]. Raises TrainingFailed, and changes neither, if a
    count would leave the int32 range.
    """
    if counts.shape != weights.shape or (words.size and words[-1] & INDEX >= counts.size):
        raise ValueError(f"words up to {words[-1:] & INDEX} for counts {counts.shape} and weights {weights.shape}")
    if levels.size not in (0, words.size):
        raise ValueError(f"{levels.size} levels for {words.size} words")
    failed = _apply(words, levels, step, counts, weights)
    if failed >= 0:
        _apply(words[:failed], levels[:failed], -step, counts, weights)
        raise TrainingFailed(f"weight {words[failed] & INDEX} would leave ±32, the range of integer weights")


@njit(cache=True, nogil=True)
def _apply(words, levels, step, counts, weights):  # type: ignore[no-untyped-def]
    for j in range(words.size):
        index = np.int64(words[j] & INDEX)
        move = step * np.int64(levels[j]) if levels.size else step
        count = np.int64(counts[index]) + (move if words[j] & SIGN else -move)
        if not -COUNT_MAX <= count <= COUNT_MAX:
            return j
        counts[index] = count
        weights[index] = count * UNIT  # in float64, then rounded once
    return -1


@njit(cache=True, nogil=True)
def digest(counts, weights):  # type: ignore[no-untyped-def]
    """The digest of `counts` int32 [n], and the first index whose weight is not fl(count·UNIT), or −1."""
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
def digest_change(words, step, levels):  # type: ignore[no-untyped-def]
    """The change of the digest by `apply(words, step, …, levels)`, to be added modulo 2⁶⁴."""
    total = np.uint64(0)
    up, down = np.uint64(step), np.uint64(-step)
    for j in range(words.size):
        word = words[j]
        key = (np.uint64(word & INDEX) + _ONE) * _MULTIPLIER
        change = (up if word & SIGN else down) * (key ^ (key >> _SHIFT))
        total += change * np.uint64(levels[j]) if levels.size else change
    return total
