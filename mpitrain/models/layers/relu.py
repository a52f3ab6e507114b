"""Rectified linear units."""

import numpy as np
from numba import njit

from mpitrain.flat import Array
from mpitrain.models.layer import Activation, LayerOptions


def bias_relu(y: Array, bias: Array | None) -> None:
    """y [..., units] ← max(y + bias, 0)."""
    if bias is not None:
        np.add(y, bias, out=y)
    np.maximum(y, 0, out=y)


@njit(cache=True, nogil=True)
def relu_backward(y: Array, dy: Array) -> None:
    """dy ← dy where y > 0, exactly 0 elsewhere."""
    flat_y, flat_dy = y.reshape(-1), dy.reshape(-1)
    zero = flat_y.dtype.type(0)
    for i in range(flat_y.size):
        flat_dy[i] = flat_dy[i] if flat_y[i] > 0 else zero


class ReluOptions(LayerOptions, frozen=True, tag_field="kind", tag="relu"):
    """max(x, 0)."""


class Relu(Activation, options=ReluOptions):
    """y = max(x, 0); the gradient at 0 is 0."""

    kind, function, gradient = "relu", staticmethod(bias_relu), staticmethod(relu_backward)
