"""Local response normalisation (mpitrain.models.normalisation), and the sums over neighbouring channels in it."""

import sys

import numpy as np
from numba import njit

from mpitrain.flat import Array
from mpitrain.ops.elementwise import add_scaled

#: The most channels of a window on either side; another device may allow fewer.
LRN_HALF_MAX = sys.maxsize


@njit(cache=True, nogil=True)
def channel_window_sum(x: Array, half: int, out: Array) -> None:
    """out[..., c] = Σ x[..., c'] over |c' − c| ≤ half, with channels outside counting as 0."""
    channels = x.shape[-1]
    rows, sums = x.reshape(-1, channels), out.reshape(-1, channels)
    for i in range(rows.shape[0]):
        row, total = rows[i], sums[i]
        for c in range(channels):
            total[c] = row[c]
        for distance in range(1, min(half, channels - 1) + 1):
            above, far = row[distance:], total[distance:]
            for c in range(channels - distance):
                total[c] += above[c]
            for c in range(channels - distance):
                far[c] += row[c]


def lrn_forward(x: Array, y: Array, d: Array, *, half: int, scale: float, power: float, offset: float) -> None:
    """Fill y and d, both of x's shape; d is for `lrn_backward`."""
    np.square(x, out=y)
    channel_window_sum(y, half, d)
    np.multiply(d, scale, out=d)
    np.add(d, offset, out=d)
    _divide(x, d, power, y)


def lrn_backward(x: Array, d: Array, dy: Array, dx: Array, *, half: int, scale: float, power: float) -> None:
    """dx_c = dy_c·d_c^−power − 2·scale·power·x_c·Σ dy·y/d over the window, which is its own adjoint. Overwrites dy,
    d."""
    _divide(dy, d, power, dx)
    np.divide(dx, d, out=d)
    np.multiply(d, x, out=d)  # dy·y/d
    channel_window_sum(d, half, dy)
    np.multiply(dy, x, out=dy)
    add_scaled(dx, dy, -2 * scale * power)


def _divide(x: Array, d: Array, power: float, out: Array) -> None:
    """out ← x·d^−power: with square roots in one pass for the paper's power, else with logarithm and exponential."""
    if power == 0.75:
        _divide_by_three_quarters(x.reshape(-1), d.reshape(-1), out.reshape(-1))
        return
    np.log(d, out=out)
    np.multiply(out, -power, out=out)
    np.exp(out, out=out)
    np.multiply(out, x, out=out)


@njit(cache=True, nogil=True, error_model="numpy")
def _divide_by_three_quarters(x: Array, d: Array, out: Array) -> None:
    """out ← x / d^(3/4). A division by 0 gives inf or nan, as in NumPy."""
    for i in range(d.size):
        root = np.sqrt(d[i])
        out[i] = x[i] / (root * np.sqrt(root))
