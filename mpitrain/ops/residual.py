"""Add a gradient to the residual and emit the elements that exceed the threshold, in one pass over memory.

Strom, Scalable Distributed DNN Training Using Commodity GPU Cloud Computing, Interspeech 2015, §2.6 steps 4 to 7.
An emitted element is a uint32 word: the index in 31 bits, the top bit set for a negative residual (§2.5).
"""

from math import inf

import numpy as np
from numba import njit

from mpitrain.errors import TrainingFailed
from mpitrain.flat import Array

#: The two parts of a word: the sign bit, set for a negative element, and the index.
SIGN = np.uint32(0x80000000)
INDEX = np.uint32(0x7FFFFFFF)
#: Elements tested together. At 0.1 % density 3 % of such blocks hold an element to emit, and only those are scanned.
SPAN = 32


def accumulate(
    residual: Array, gradient: Array, words: Array, *, scale: float, threshold: float, limit: float = inf
) -> int:
    """residual += scale·gradient, then emit; returns the number of words written to `words`, ascending by index.

    `residual`, `gradient` [n] of one float dtype, n ≤ 2³¹; `words` uint32 [n]; `scale` is the number of samples in the
    minibatch if `gradient` is its mean. `threshold` is a value of `round_threshold`, so that for each element, exactly
    as long as |residual| < 2¹⁶ thresholds (float64: 2⁴⁵),
        emitted·threshold + residual after = fl(residual before + fl(scale·gradient)).
    An infinite `threshold` emits nothing. After emission, or without it, every residual is clipped to ±`limit`.
    Raises TrainingFailed if an element is not finite.
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
            count = _emit(residual, words, start, start + SPAN, threshold, limit, count)
            if count < 0:
                return count
    for i in range(whole, residual.size):
        residual[i] += scale * gradient[i]
    return _emit(residual, words, whole, residual.size, threshold, limit, count)


@njit(cache=True, nogil=True)
def _emit(residual, words, start, stop, threshold, limit, count):  # type: ignore[no-untyped-def]
    bound = min(threshold, limit)
    for i in range(start, stop):
        value = residual[i]
        if abs(value) <= bound:
            continue
        if not abs(value) < np.inf:
            return -1 - i
        if abs(value) > threshold:
            negative = value < 0
            value += threshold if negative else -threshold
            words[count] = np.uint32(i) | (SIGN if negative else np.uint32(0))
            count += 1
        residual[i] = min(max(value, -limit), limit)
    return count
