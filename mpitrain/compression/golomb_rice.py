"""Golomb–Rice code of the gaps between sorted indices (Strom 2015, §2.5), with the sign of each element.

An element is, from the lowest bit up: the quotient gap−1 ÷ 2ᵏ in unary as ones, a zero, the sign, the k low bits of
gap−1. The first gap is index + 1. Bits fill uint32 words from the lowest bit up; the last word is padded with zeros.
"""

from math import floor, log, log2

import numpy as np
from numba import njit

from mpitrain.compression.residual import INDEX
from mpitrain.flat import Array

#: A zero, a sign and this many low bits fit in 32 bits.
PARAMETER_MAX = 30


def parameter(words: Array) -> int:
    """The best k for geometrically distributed gaps with the mean of these words.

    k = max(0, 1 + ⌊log₂(ln 0.618034 / ln(m/(m+1)))⌋) with m the mean of gap−1 (Kiely, Selecting the Golomb parameter in
    Rice coding, 2004); 0 if m = 0.
    """
    if words.size == 0 or int(words[-1] & INDEX) + 1 == words.size:
        return 0
    mean = (int(words[-1] & INDEX) + 1) / words.size - 1
    return min(max(0, 1 + floor(log2(log(0.618034) / log(mean / (mean + 1))))), PARAMETER_MAX)


@njit(cache=True, nogil=True)
def size(words, k):  # type: ignore[no-untyped-def]
    """Number of uint32 words of the code of `words` uint32 [n], ascending by index, with parameter `k`."""
    bits = np.int64(words.size) * (k + 2)
    previous = np.int64(-1)
    for word in words:
        index = np.int64(word & INDEX)
        bits += (index - previous - 1) >> k
        previous = index
    return (bits + 31) // 32


@njit(cache=True, nogil=True)
def flushed(window, filled, out, at):  # type: ignore[no-untyped-def]
    """Write the lowest 32 of the `filled` bits of a window to `out[at]` if there are as many; returns the window, its
    bits, and where the next ones go."""
    if filled < np.uint64(32):
        return window, filled, at
    out[at] = np.uint32(window)
    return window >> np.uint64(32), filled - np.uint64(32), at + 1


@njit(cache=True, nogil=True)
def encode(words, k, out):  # type: ignore[no-untyped-def]
    """Encode `words` uint32 [n], ascending by index, to `out` uint32 [size(words, k)]."""
    low = (np.uint64(1) << np.uint64(k)) - np.uint64(1)
    tail = np.uint64(k + 2)
    window, filled, at = np.uint64(0), np.uint64(0), 0
    previous = np.int64(-1)
    for word in words:
        index = np.int64(word & INDEX)
        rest = np.uint64(index - previous - 1)
        previous = index
        quotient = rest >> np.uint64(k)
        while True:  # at most 32 ones at a time; `filled` is below 32 here
            ones = min(quotient, np.uint64(32))
            window |= ((np.uint64(1) << ones) - np.uint64(1)) << filled
            window, filled, at = flushed(window, filled + ones, out, at)
            quotient -= ones
            if quotient == np.uint64(0):
                break
        code = (np.uint64(word >> np.uint32(31)) << np.uint64(1)) | ((rest & low) << np.uint64(2))
        window |= code << filled
        window, filled, at = flushed(window, filled + tail, out, at)
    if filled > np.uint64(0):
        out[at] = np.uint32(window)


@njit(cache=True, nogil=True)
def decode(payload, k, length, words):  # type: ignore[no-untyped-def]
    """The inverse of `encode`, into `words` [n]; `payload` uint32.

    Returns False if the code extends beyond the payload, if an index reaches `length`, or if the last element is not
    followed by zeros only.
    """
    low = (np.uint64(1) << np.uint64(k)) - np.uint64(1)
    tail = np.uint64(k + 1)
    window, filled, at = np.uint64(0), np.uint64(0), 0
    index = np.int64(-1)
    for j in range(words.size):
        quotient = np.int64(0)
        while True:
            if filled == np.uint64(0):
                if at == payload.size:
                    return False
                window, filled = np.uint64(payload[at]), np.uint64(32)
                at += 1
            one = window & np.uint64(1)
            window >>= np.uint64(1)
            filled -= np.uint64(1)
            if one == np.uint64(0):
                break
            quotient += 1
        if filled < tail:
            if at == payload.size:
                return False
            window |= np.uint64(payload[at]) << filled
            filled += np.uint64(32)
            at += 1
        negative = np.uint32(window & np.uint64(1)) << np.uint32(31)
        index += 1 + (quotient << k) + np.int64((window >> np.uint64(1)) & low)
        if index >= length:
            return False
        words[j] = np.uint32(index) | negative
        window >>= tail
        filled -= tail
    return at == payload.size and filled < np.uint64(32) and window == np.uint64(0)
