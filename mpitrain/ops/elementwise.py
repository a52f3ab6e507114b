"""Products, sums, activations in place, and derivatives of activations from their outputs."""

import numpy as np
from numba import njit

from mpitrain.flat import Array


def matmul(a: Array, b: Array, out: Array) -> None:
    """out ← a·b; each may be a transposed view."""
    np.matmul(a, b, out=out)


def add_bias(y: Array, bias: Array) -> None:
    """y [..., units] ← y + bias [units]."""
    np.add(y, bias, out=y)


def column_sums(x: Array, out: Array) -> None:
    """out [columns] ← the sums of x [rows, columns]."""
    np.sum(x, axis=0, out=out)


def sigmoid(x: Array) -> None:
    """x ← 1 / (1 + exp(−x)), with NumPy's vectorised exponential."""
    with np.errstate(over="ignore"):  # exp(−x) = inf gives the right 0
        np.negative(x, out=x)
        np.exp(x, out=x)
    np.add(x, 1, out=x)
    np.reciprocal(x, out=x)


@njit(cache=True, nogil=True)
def sigmoid_backward(y: Array, dy: Array) -> None:
    """dy ← dy·y·(1 − y), in one pass."""
    flat_y, flat_dy = y.reshape(-1), dy.reshape(-1)
    for i in range(flat_y.size):
        flat_dy[i] *= flat_y[i] * (1 - flat_y[i])


@njit(cache=True, nogil=True)
def relu_backward(y: Array, dy: Array) -> None:
    """dy ← dy where y > 0, exactly 0 elsewhere."""
    flat_y, flat_dy = y.reshape(-1), dy.reshape(-1)
    zero = flat_y.dtype.type(0)
    for i in range(flat_y.size):
        flat_dy[i] = flat_dy[i] if flat_y[i] > 0 else zero


@njit(cache=True, nogil=True)
def add_scaled(y: Array, x: Array, scale: float) -> None:
    """y ← y + scale·x, in one pass."""
    flat_y, flat_x = y.reshape(-1), x.reshape(-1)
    factor = flat_y.dtype.type(scale)
    for i in range(flat_y.size):
        flat_y[i] += factor * flat_x[i]
