"""Adding a gradient to the residual and taking out what exceeds the threshold, in one pass over memory.

Strom, Scalable Distributed DNN Training Using Commodity GPU Cloud Computing, Interspeech 2015, §2.6 steps 4 to 7.
An emitted element is a uint32 word: the index in 31 bits, the top bit set for a negative residual (§2.5).
"""

from math import inf

import numpy as np
from numba import njit

from mpitrain.errors import TrainingFailed
from mpitrain.flat import Array

#: The two parts of a word: set for a negative element, and where it is.
SIGN = np.uint32(0x80000000)
INDEX = np.uint32(0x7FFFFFFF)
#: Elements looked at together. At 0.1 % density 3 % of such blocks hold an element to emit, and only those are scanned.
SPAN = 32


def accumulate(
    residual: Array, gradient: Array, words: Array, *, scale: float, threshold: float, limit: float = inf
) -> int:
    """residual += scale·gradient, then emit; returns how many words (ascending by index) were written to `words`.

    `residual`, `gradient` [n] of one float dtype, n ≤ 2³¹; `words` uint32 [n]; `scale` is the number of samples in the
    minibatch when `gradient` is its mean. `threshold` is a value of `round_threshold`: then each element keeps, exactly
    while |residual| < 2¹⁶ thresholds (float64: 2⁴⁵),
        emitted·threshold + residual after = fl(residual before + fl(scale·gradient)).
    An infinite `threshold` emits nothing. What exceeds ±`limit` after emission is clipped to it.
    Raises TrainingFailed when an element is not finite.
    """
    if not residual.shape == gradient.shape == words.shape:
        raise ValueError(f"residual, gradient, words of shapes {residual.shape}, {gradient.shape}, {words.shape}")
    kind = residual.dtype.type
    count = _accumulate(residual, gradient, words, kind(scale), kind(threshold), kind(limit))
    if count < 0:
        raise TrainingFailed(f"element {-1 - count} of the residual is not finite: training has diverged")
    return int(count)


@njit(cache=True, nogil=True)
def _accumulate(residual, gradient, words, scale, threshold, limit):  # type: ignore[no-untyped-def]
    count = 0
    whole = residual.size - residual.size % SPAN
    for start in range(0, whole, SPAN):
        # A constant trip count and an integer sum: what the compiler needs to use vectors. True for NaN too.
        hits = 0
        for i in range(SPAN):
            value = residual[start + i] + scale * gradient[start + i]
            residual[start + i] = value
            hits += not abs(value) <= threshold
        if hits:
            count = _emit(residual, words, start, start + SPAN, threshold, limit, count)
            if count < 0:
                return count
    for i in range(whole, residual.size):
        residual[i] += scale * gradient[i]
    return _emit(residual, words, whole, residual.size, threshold, limit, count)


@njit(cache=True, nogil=True)
def _emit(residual, words, start, stop, threshold, limit, count):  # type: ignore[no-untyped-def]
    for i in range(start, stop):
        value = residual[i]
        if not abs(value) <= threshold:
            if not abs(value) < np.inf:
                return -1 - i
            negative = value < 0
            value += threshold if negative else -threshold
            residual[i] = min(max(value, -limit), limit)
            words[count] = np.uint32(i) | (SIGN if negative else np.uint32(0))
            count += 1
    return count
