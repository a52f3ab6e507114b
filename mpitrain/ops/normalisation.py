"""Local response normalisation across channels: y_c = x_c·d_c^−power, d_c = offset + scale·Σ x² over the window."""

import numpy as np

from mpitrain.flat import Array
from mpitrain.ops.neighbours import channel_window_sum


def lrn_forward(x: Array, y: Array, d: Array, *, half: int, scale: float, power: float, offset: float) -> None:
    """Fills y and d, both of x's shape; d is for `lrn_backward`."""
    np.square(x, out=y)
    channel_window_sum(y, half, d)
    np.multiply(d, scale, out=d)
    np.add(d, offset, out=d)
    _power(d, power, y)
    np.multiply(x, y, out=y)


def lrn_backward(x: Array, d: Array, dy: Array, dx: Array, *, half: int, scale: float, power: float) -> None:
    """dx_c = dy_c·d_c^−power − 2·scale·power·x_c·Σ dy·y/d over the window, which is its own adjoint. dy, d are lost."""
    _power(d, power, dx)
    np.multiply(dx, dy, out=dy)  # dy·d^−power
    np.divide(dy, d, out=d)
    np.multiply(d, x, out=d)  # dy·y/d
    channel_window_sum(d, half, dx)
    np.multiply(dx, x, out=dx)
    np.multiply(dx, -2 * scale * power, out=dx)
    np.add(dx, dy, out=dx)


def _power(d: Array, power: float, out: Array) -> None:
    """out ← d^−power by way of the vectorised logarithm and exponential."""
    np.log(d, out=out)
    np.multiply(out, -power, out=out)
    np.exp(out, out=out)
