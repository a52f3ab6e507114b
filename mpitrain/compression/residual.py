"""Add a gradient to the residual and emit the elements that exceed the threshold, in one pass over memory.

Strom, Scalable Distributed DNN Training Using Commodity GPU Cloud Computing, Interspeech 2015, §2.6 steps 4 to 7.
An emitted element is a uint32 word: the index in 31 bits, the top bit set for a negative residual (§2.5). With more
than one bit, an element also has a level: how many quanta of the residual are sent.
"""

from math import inf
from typing import NamedTuple

import numpy as np
from numba import njit

from mpitrain.errors import TrainingFailed
from mpitrain.flat import Array

#: The two parts of a word: the sign bit, set for a negative element, and the index.
SIGN = np.uint32(0x80000000)
INDEX = np.uint32(0x7FFFFFFF)
#: The levels of elements of one bit, each of which sends one quantum.
NO_LEVELS = np.empty(0, np.uint32)
#: Elements tested together. At 0.1 % density 3 % of such blocks hold an element to emit, and only those are scanned.
SPAN = 32


class Entries(NamedTuple):
    """Emitted elements: `words` uint32 [k], ascending by index, and their `levels` uint32 [k] or NO_LEVELS.

    If tensors have tables of levels, a message holds instead the `tables` uint32 [tensors · codes of an element] and
    the `codes` uint32 [k] of the levels in them, from 1 on, or NO_LEVELS if each tensor has one level.
    """

    words: Array
    levels: Array = NO_LEVELS
    codes: Array = NO_LEVELS
    tables: Array = NO_LEVELS


def accumulate(
    residual: Array,
    gradient: Array,
    words: Array,
    *,
    scale: float,
    threshold: float,
    limit: float = inf,
    levels: Array = NO_LEVELS,
    greatest: int = 1,
    quantum: float = 0.0,
    first: int = 0,
) -> int:
    """residual += scale·gradient, then emit; returns the number of words written to `words`, ascending by index.

    `residual`, `gradient` [n] of one float dtype, n ≤ 2³¹; `words` uint32 [n]; `scale` is the number of samples in the
    minibatch if `gradient` is its mean. `threshold` is a value of `round_threshold`, so that for each element, exactly
    as long as |residual| < 2¹⁶ thresholds (float64: 2⁴⁵),
        emitted·threshold + residual after = fl(residual before + fl(scale·gradient)).
    With `levels` uint32 [n], level·threshold is emitted, 1 ≤ level = trunc(|residual|/threshold) ≤ `greatest`; or if
    there is a `quantum` (a value of `unit_quantum`), level·quantum with level = round(|residual|/quantum), exactly as
    long as `greatest` does not bound it.
    `first` is the index of the first element, if these are part of a longer residual: indices count from there.
    An infinite `threshold` emits nothing. After emission, or without it, every residual is clipped to ±`limit`.
    Raises TrainingFailed if an element is not finite.
    """
    if not residual.shape == gradient.shape == words.shape:
        raise ValueError(f"residual, gradient, words of shapes {residual.shape}, {gradient.shape}, {words.shape}")
    if levels.size not in (0, words.size):
        raise ValueError(f"{levels.size} levels for {words.size} words")
    kind = residual.dtype.type
    scalars = kind(scale), kind(threshold), kind(limit), float(greatest), float(quantum)
    count = _accumulate(residual, gradient, words, levels if levels.size else None, *scalars)
    if count < 0:
        raise TrainingFailed(f"element {first - 1 - count} of the residual is not finite: training has diverged")
    if first:
        words[:count] += np.uint32(first)  # the sign is the top bit, which no index reaches
    return int(count)


@njit(cache=True, nogil=True)
def _accumulate(residual, gradient, words, levels, scale, threshold, limit, greatest, quantum):  # type: ignore[no-untyped-def]
    count = 0
    bound = min(threshold, limit)  # residuals up to here stay as they are
    whole = residual.size - residual.size % SPAN
    for start in range(0, whole, SPAN):
        # The compiler needs a constant trip count and an integer sum to vectorise. The test is also true for NaN.
        hits = 0
        for i in range(SPAN):
            value = residual[start + i] + scale * gradient[start + i]
            residual[start + i] = value
            hits += not abs(value) <= bound
        if hits:
            count = _emit(residual, words, levels, start, start + SPAN, threshold, limit, greatest, quantum, count)
            if count < 0:
                return count
    for i in range(whole, residual.size):
        residual[i] += scale * gradient[i]
    return _emit(residual, words, levels, whole, residual.size, threshold, limit, greatest, quantum, count)


@njit(cache=True, nogil=True)
def _emit(residual, words, levels, start, stop, threshold, limit, greatest, quantum, count):  # type: ignore[no-untyped-def]
    kind = residual.dtype.type
    for i in range(start, stop):
        value = residual[i]
        if not abs(value) <= threshold:
            if not abs(value) < np.inf:
                return -1 - i
            negative = value < 0
            words[count] = np.uint32(i) | (SIGN if negative else np.uint32(0))
            if levels is not None:  # decided when compiled
                unit = quantum if quantum else np.float64(threshold)
                level = np.rint(abs(value) / unit) if quantum else np.floor(abs(value) / unit)
                level = min(max(level, 1.0), greatest)
                levels[count] = np.uint32(level)
                value = kind(value + level * unit if negative else value - level * unit)  # rounded once
            else:
                value += threshold if negative else -threshold
            residual[i] = min(max(value, -limit), limit)
            count += 1
        elif limit < threshold and abs(value) > limit:
            if value == np.inf or value == -np.inf:
                return -1 - i
            residual[i] = min(max(value, -limit), limit)
    return count
