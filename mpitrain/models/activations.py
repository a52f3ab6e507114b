"""Elementwise layers: in place, on the buffer of the layer before."""

import numpy as np

from mpitrain.flat import Array
from mpitrain.models.layer import Layer, Views


class Relu(Layer):
    """y = max(x, 0); the gradient at 0 is 0."""

    kind = "relu"

    def forward(self, views: Views, x: Array, training: bool = False, rng: np.random.Generator | None = None) -> Array:
        self._y = np.maximum(x, 0, out=x)
        return self._y

    def backward(self, views: Views, gradients: Views, dy: Array, need_dx: bool = True) -> Array | None:
        self.workspace.ops.relu_backward(self._y, dy)
        return dy


class Sigmoid(Layer):
    """y = 1 / (1 + exp(−x))."""

    kind = "sigmoid"

    def forward(self, views: Views, x: Array, training: bool = False, rng: np.random.Generator | None = None) -> Array:
        self.workspace.ops.sigmoid(x)
        self._y = x
        return x

    def backward(self, views: Views, gradients: Views, dy: Array, need_dx: bool = True) -> Array | None:
        self.workspace.ops.sigmoid_backward(self._y, dy)
        return dy
