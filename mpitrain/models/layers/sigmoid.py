"""Sigmoid units."""

import numpy as np
from numba import njit

from mpitrain.flat import Array
from mpitrain.models.layer import Activation, LayerOptions


def bias_sigmoid(y: Array, bias: Array | None) -> None:
    """y [..., units] ← 1 / (1 + exp(−(y + bias))), with NumPy's vectorised exponential."""
    if bias is not None:
        np.add(y, bias, out=y)
    with np.errstate(over="ignore"):  # exp(−y) = inf gives the right 0
        np.negative(y, out=y)
        np.exp(y, out=y)
    np.add(y, 1, out=y)
    np.reciprocal(y, out=y)


@njit(cache=True, nogil=True)
def sigmoid_backward(y: Array, dy: Array) -> None:
    """dy ← dy·y·(1 − y), in one pass."""
    flat_y, flat_dy = y.reshape(-1), dy.reshape(-1)
    for i in range(flat_y.size):
        flat_dy[i] *= flat_y[i] * (1 - flat_y[i])


class SigmoidOptions(LayerOptions, frozen=True, tag_field="kind", tag="sigmoid"):
    """1 / (1 + exp(−x))."""


class Sigmoid(Activation, options=SigmoidOptions):
    """y = 1 / (1 + exp(−x))."""

    kind, function, gradient = "sigmoid", staticmethod(bias_sigmoid), staticmethod(sigmoid_backward)
