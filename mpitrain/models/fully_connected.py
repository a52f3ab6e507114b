"""Fully connected layer, whole or in columns."""

from math import prod, sqrt

import numpy as np

from mpitrain.flat import Array, Parameter
from mpitrain.models.layer import DoesNotFit, Layer, Shape, Views

Blocks = list[tuple[slice, slice]]  #: the inputs and the units of each column


class FullyConnected(Layer):
    """y = xW + b, with W [inputs, units]; inputs of any shape are flattened.

    With several `columns`, inputs and units are divided into as many equal parts, one after another, and each unit sees
    only the inputs of its own column (restricted connectivity: Krizhevsky 2014, conclusion). W is then [inputs /
    columns, units].

    `deviation` is the standard deviation of the initial weights, by default √(`gain` / inputs of a unit), where `gain`
    = 2 preserves the variance through a ReLU (He et al. 2015); `bias` is the initial bias.
    """

    kind = "fc"

    def __init__(
        self, units: int, deviation: float | None = None, bias: float = 0.0, gain: float = 2.0, columns: int = 1
    ) -> None:
        super().__init__()
        self.units = units
        self.columns = columns
        self.deviation = deviation
        self.bias = bias
        self.gain = gain

    def prepare(self, input_shape: Shape) -> Shape:
        inputs, columns = prod(input_shape), self.columns
        if inputs % columns or self.units % columns:
            why = f"{inputs} inputs and {self.units} units cannot both be divided into {columns} equal columns"
            raise DoesNotFit(self.name, "columns", why)
        self._blocks = blocks(inputs, self.units, columns)
        inputs //= columns
        deviation = sqrt(self.gain / inputs) if self.deviation is None else self.deviation
        weights = Parameter(f"{self.name}.weights", (inputs, self.units), ("gaussian", deviation))
        bias = Parameter(f"{self.name}.bias", (self.units,), ("constant", self.bias), decay=False)
        self.parameters = [weights, bias]
        return (self.units,)

    @property
    def operations(self) -> int:
        return prod(self.input_shape) * self.units // self.columns

    def forward(self, views: Views, x: Array, training: bool = False, rng: np.random.Generator | None = None) -> Array:
        weights, bias = (views[p.name] for p in self.parameters)
        self._x = x.reshape(len(x), -1)
        y = self.buffer("y", (len(x), self.units), x)
        for inputs, units in self._blocks:
            self.workspace.ops.matmul(self._x[:, inputs], weights[:, units], y[:, units])
        if self.leaves_bias:
            self.workspace.bias = bias
        else:
            self.workspace.ops.add_bias(y, bias)
        return y

    def backward(self, views: Views, gradients: Views, dy: Array, need_dx: bool = True) -> Array | None:
        (weights, bias), ops = self.parameters, self.workspace.ops
        for inputs, units in self._blocks:
            ops.matmul(self._x[:, inputs].T, dy[:, units], gradients[weights.name][:, units])
        ops.column_sums(dy, gradients[bias.name])
        if not need_dx:
            return None
        dx = self.buffer("dx", self._x.shape, dy)
        for inputs, units in self._blocks:
            ops.matmul(dy[:, units], views[weights.name][:, units].T, dx[:, inputs])
        return dx.reshape(len(dy), *self.input_shape)


def blocks(inputs: int, units: int, columns: int) -> Blocks:
    """The columns that so many inputs and units are divided into evenly."""
    rows, count = inputs // columns, units // columns
    return [(slice(c * rows, (c + 1) * rows), slice(c * count, (c + 1) * count)) for c in range(columns)]
