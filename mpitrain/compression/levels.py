"""The levels of entries of more than one bit: level − 1 in `width` bits each, after the payload of indices and signs.

Bits fill uint32 words from the lowest bit up; the last word is padded with zeros.
"""

import numpy as np
from numba import njit

from mpitrain.compression.golomb_rice import flushed
from mpitrain.compression.thresholds import COUNT_MAX


def size(count: int, width: int) -> int:
    """Number of uint32 words for `count` levels."""
    return -(-count * width // 32)


@njit(cache=True, nogil=True)
def encode(levels, width, out):  # type: ignore[no-untyped-def]
    """Encode `levels` uint32 [k], each 1 to 2^width and at most COUNT_MAX, to `out` uint32 [size(k, width)]."""
    window, filled, at = np.uint64(0), np.uint64(0), 0
    for level in levels:
        window |= np.uint64(level - 1) << filled
        window, filled, at = flushed(window, filled + np.uint64(width), out, at)
    if filled > np.uint64(0):
        out[at] = np.uint32(window)


@njit(cache=True, nogil=True)
def decode(payload, width, levels):  # type: ignore[no-untyped-def]
    """The inverse of `encode`, into `levels` [k]; `payload` uint32 [size(k, width)].

    Returns False if a level exceeds COUNT_MAX, or if the last one is not followed by zeros only.
    """
    low = (np.uint64(1) << np.uint64(width)) - np.uint64(1)
    window, filled, at = np.uint64(0), np.uint64(0), 0
    for j in range(levels.size):
        if filled < np.uint64(width):
            window |= np.uint64(payload[at]) << filled
            filled += np.uint64(32)
            at += 1
        level = (window & low) + np.uint64(1)
        if level > np.uint64(COUNT_MAX):
            return False
        levels[j] = np.uint32(level)
        window >>= np.uint64(width)
        filled -= np.uint64(width)
    return window == np.uint64(0)
