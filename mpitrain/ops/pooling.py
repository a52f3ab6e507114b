"""Max-pooling over square windows inside the image."""

import numpy as np
from numba import njit

from mpitrain.flat import Array


@njit(cache=True, nogil=True)
def max_pool(x: Array, size: int, stride: int, out: Array, place: Array) -> None:
    """out [n, h', w', c] = the maximum of each window of x [n, h, w, c].

    `place` (integers up to size² − 1, the shape of out) = its position in the window, row by row.
    The first of equal values is taken; NaN is larger than every number.
    """
    n, rows, columns, channels = out.shape
    found = np.empty(channels, np.int32)  # as wide as a float32, so that the loop over channels works on whole vectors
    for i in range(n):
        for row in range(rows):
            for column in range(columns):
                best = out[i, row, column]
                corner = x[i, row * stride, column * stride]
                for c in range(channels):
                    best[c] = corner[c]
                    found[c] = 0
                for k in range(1, size * size):
                    pixel = x[i, row * stride + k // size, column * stride + k % size]
                    for c in range(channels):
                        wins = (pixel[c] > best[c]) | (pixel[c] != pixel[c])
                        best[c] = pixel[c] if wins else best[c]
                        found[c] = np.int32(k) if wins else found[c]
                for c in range(channels):
                    place[i, row, column, c] = found[c]


@njit(cache=True, nogil=True)
def max_unpool(dy: Array, place: Array, size: int, stride: int, out: Array) -> None:
    """The gradient of max_pool: out [n, h, w, c] = 0 plus each dy at the place of its maximum."""
    n, rows, columns, channels = dy.shape
    for i in range(n):
        out[i] = 0
        for row in range(rows):
            for column in range(columns):
                gradient, where = dy[i, row, column], place[i, row, column]
                for k in range(size * size):
                    pixel = out[i, row * stride + k // size, column * stride + k % size]
                    for c in range(channels):
                        pixel[c] += gradient[c] if where[c] == k else 0
