"""Fully connected layer."""

from math import prod, sqrt

import numpy as np

from mpitrain.flat import Array, Parameter
from mpitrain.models.layer import Layer, Shape, Views


class FullyConnected(Layer):
    """y = xW + b, with W [inputs, units]; inputs of any shape are flattened.

    `deviation` is the standard deviation of the initial weights, by default √(`gain` / inputs), where `gain` = 2
    preserves the variance through a ReLU (He et al. 2015); `bias` is the initial bias.
    """

    kind = "fc"

    def __init__(self, units: int, deviation: float | None = None, bias: float = 0.0, gain: float = 2.0) -> None:
        super().__init__()
        self.units = units
        self.deviation = deviation
        self.bias = bias
        self.gain = gain

    def prepare(self, input_shape: Shape) -> Shape:
        inputs = prod(input_shape)
        deviation = sqrt(self.gain / inputs) if self.deviation is None else self.deviation
        weights = Parameter(f"{self.name}.weights", (inputs, self.units), ("gaussian", deviation))
        bias = Parameter(f"{self.name}.bias", (self.units,), ("constant", self.bias), decay=False)
        self.parameters = [weights, bias]
        return (self.units,)

    @property
    def operations(self) -> int:
        return prod(self.input_shape) * self.units

    def forward(self, views: Views, x: Array, training: bool = False, rng: np.random.Generator | None = None) -> Array:
        weights, bias = (views[p.name] for p in self.parameters)
        self._x = x.reshape(len(x), -1)
        y = self.buffer("y", (len(x), self.units), x)
        self.workspace.ops.matmul(self._x, weights, y)
        if self.leaves_bias:
            self.workspace.bias = bias
        else:
            self.workspace.ops.add_bias(y, bias)
        return y

    def backward(self, views: Views, gradients: Views, dy: Array, need_dx: bool = True) -> Array | None:
        (weights, bias), ops = self.parameters, self.workspace.ops
        ops.matmul(self._x.T, dy, gradients[weights.name])
        ops.column_sums(dy, gradients[bias.name])
        if not need_dx:
            return None
        dx = self.buffer("dx", self._x.shape, dy)
        ops.matmul(dy, views[weights.name].T, dx)
        return dx.reshape(len(dy), *self.input_shape)
