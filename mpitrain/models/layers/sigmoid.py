"""Sigmoid units."""

import numpy as np
from numba import njit

from mpitrain.flat import Array
from mpitrain.models.layer import Activation, LayerOptions


def sigmoid(x: Array) -> None:
    """x ← 1 / (1 + exp(−x)), with NumPy's vectorised exponential."""
    with np.errstate(over="ignore"):  # exp(−x) = inf gives the right 0
        np.negative(x, out=x)
        np.exp(x, out=x)
    np.add(x, 1, out=x)
    np.reciprocal(x, out=x)


def bias_sigmoid(y: Array, bias: Array | None) -> None:
    """y [..., units] ← 1 / (1 + exp(−(y + bias)))."""
    if bias is not None:
        np.add(y, bias, out=y)
    sigmoid(y)


@njit(cache=True, nogil=True)
def sigmoid_backward(y: Array, dy: Array) -> None:
    """dy ← dy·y·(1 − y), in one pass."""
    flat_y, flat_dy = y.reshape(-1), dy.reshape(-1)
    for i in range(flat_y.size):
        flat_dy[i] *= flat_y[i] * (1 - flat_y[i])


class SigmoidOptions(LayerOptions, frozen=True, tag_field="kind", tag="sigmoid"):
    """1 / (1 + exp(−x))."""

    def make(self) -> "Sigmoid":
        return Sigmoid(self)


class Sigmoid(Activation):
    """y = 1 / (1 + exp(−x))."""

    kind, function, gradient = "sigmoid", staticmethod(bias_sigmoid), staticmethod(sigmoid_backward)
