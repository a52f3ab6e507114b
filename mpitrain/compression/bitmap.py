"""The form for dense messages: one bit per element, set if it is sent, then one sign bit per element sent.

Bits fill uint32 words from the lowest bit up; both parts start at a word.
"""

import numpy as np
from numba import njit

from mpitrain.compression.residual import INDEX

ONE = np.uint32(1)
FIVE = np.uint32(5)
LOW = np.uint32(31)
#: The position of the lowest bit, looked up by bit·SEQUENCE >> 27: every five successive bits of a de Bruijn sequence
#: are different.
SEQUENCE = np.uint32(0x077CB531)
POSITION = np.empty(32, np.uint32)
POSITION[[(0x077CB531 << bit & 0xFFFFFFFF) >> 27 for bit in range(32)]] = range(32)


def size(length: int, count: int) -> int:
    """Number of uint32 words for `count` of `length` elements."""
    return -(-length // 32) + -(-count // 32)


@njit(cache=True, nogil=True)
def encode(words, length, out):  # type: ignore[no-untyped-def]
    """Encode `words` uint32 [k], ascending by index, all below `length`, to `out` uint32 [size(length, k)]."""
    signs = (length + 31) // 32
    out[:] = 0
    for j in range(words.size):
        index = words[j] & INDEX
        out[index >> FIVE] |= ONE << (index & LOW)
        out[signs + (j >> 5)] |= (words[j] >> LOW) << np.uint32(j & 31)


@njit(cache=True, nogil=True)
def decode(payload, length, words):  # type: ignore[no-untyped-def]
    """The inverse of `encode`, into `words` [k]; `payload` uint32 [size(length, k)].

    Returns False unless exactly k bits below `length` are set, and no padding bit.
    """
    signs = (length + 31) // 32
    count = 0
    for at in range(signs):
        bits = payload[at]
        while bits:
            lowest = bits & (~bits + ONE)
            # Numba multiplies uint32 in 64 bits, so truncate the product.
            index = np.uint32(32 * at) + POSITION[np.uint32(lowest * SEQUENCE) >> np.uint32(27)]
            if count == words.size or index >= length:
                return False
            words[count] = index | (payload[signs + (count >> 5)] >> np.uint32(count & 31)) << LOW
            count += 1
            bits ^= lowest
    used = np.uint32(count & 31)
    return count == words.size and (used == 0 or payload[-1] >> used == 0)
