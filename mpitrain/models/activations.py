"""Elementwise layers. They work in place, on the buffer of the previous layer, and add its bias if the device has a
kernel for both."""

import numpy as np

from mpitrain.flat import Array
from mpitrain.models.layer import Layer, Views


class Relu(Layer):
    """y = max(x, 0); the gradient at 0 is 0."""

    kind = "relu"

    def forward(self, views: Views, x: Array, training: bool = False, rng: np.random.Generator | None = None) -> Array:
        bias, self.workspace.bias = self.workspace.bias, None
        if self.takes_bias:
            self.workspace.ops.bias_relu(x, bias)
        else:
            np.maximum(x, 0, out=x)
        self._y = x
        return x

    @property
    def takes_bias(self) -> bool:
        return hasattr(self.workspace.ops, "bias_relu")

    def backward(self, views: Views, gradients: Views, dy: Array, need_dx: bool = True) -> Array | None:
        self.workspace.ops.relu_backward(self._y, dy)
        return dy


class Sigmoid(Layer):
    """y = 1 / (1 + exp(−x))."""

    kind = "sigmoid"

    def forward(self, views: Views, x: Array, training: bool = False, rng: np.random.Generator | None = None) -> Array:
        bias, self.workspace.bias = self.workspace.bias, None
        if bias is None:
            self.workspace.ops.sigmoid(x)
        else:
            self.workspace.ops.bias_sigmoid(x, bias)
        self._y = x
        return x

    @property
    def takes_bias(self) -> bool:
        return hasattr(self.workspace.ops, "bias_sigmoid")

    def backward(self, views: Views, gradients: Views, dy: Array, need_dx: bool = True) -> Array | None:
        self.workspace.ops.sigmoid_backward(self._y, dy)
        return dy
