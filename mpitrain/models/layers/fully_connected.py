"""Fully connected layer, whole or in columns."""

from collections.abc import Mapping
from math import prod
from types import ModuleType

import numpy as np

from mpitrain.flat import Array, share
from mpitrain.keys import Count, NotNegative
from mpitrain.models.layer import DoesNotFit, Draws, Finite, LayerOptions, OnnxNode, Shape, Tensor, Views, Weighted
from mpitrain.models.workspace import column_sums, matmul

Blocks = list[tuple[slice, slice]]  #: the inputs and the units of each column


class FullyConnectedOptions(LayerOptions, frozen=True, tag_field="kind", tag="fully-connected"):
    """`units` sums of all inputs; the last one of a list has a unit for each class and may leave `units` out.

    With several `columns`, inputs and units are divided into as many equal parts, and each unit sees only the inputs of
    its own column. `bias` is 0 by default. That of logistic outputs is −ln(classes − 1), at which each begins at
    1/classes: from 0, the loss of C classes would begin at C·ln 2, and a training with 1000 diverges within a few
    steps.
    """

    units: Count | None = None
    columns: Count = 1
    gain: NotNegative = 2.0
    deviation: NotNegative | None = None
    bias: Finite | None = None


class FullyConnected(Weighted, options=FullyConnectedOptions):
    """y = xW + b, with W [inputs, units]; inputs of any shape are flattened.

    With several `columns`, inputs and units are divided into as many equal parts, one after another, and each unit sees
    only the inputs of its own column (restricted connectivity: Krizhevsky 2014, conclusion). W is then [inputs /
    columns, units].
    """

    kind, onnx_channels_first = "fc", False  # the order of its inputs

    def __init__(self, options: FullyConnectedOptions) -> None:
        super().__init__(options)
        self.units, self.columns = options.units or 0, options.columns  # the last one's units are the classes

    def prepare(self, input_shape: Shape) -> Shape:
        inputs, columns = prod(input_shape), self.columns
        if inputs % columns or self.units % columns:
            why = f"{inputs} inputs and {self.units} units cannot both be divided into {columns} equal columns"
            raise DoesNotFit(self, "columns", why)
        self._blocks = column_blocks(inputs, self.units, columns)
        self.set_parameters((inputs // columns, self.units))
        return (self.units,)

    def forward(self, views: Views, x: Array, training: bool = False, draws: Draws | None = None) -> Array:
        weights, bias = (views[p.name] for p in self.parameters)
        product = self.workspace.kernel(matmul)
        self._x = x.reshape(len(x), -1)
        y = self.buffer("y", (len(x), self.units), x)
        for inputs, units in self._blocks:
            product(self._x[:, inputs], weights[:, units], y[:, units])
        self.add_bias(y, bias)
        return y

    def backward(self, views: Views, gradients: Views, dy: Array, need_dx: bool = True) -> Array | None:
        (weights, bias), product = self.parameters, self.workspace.kernel(matmul)
        for inputs, units in self._blocks:
            product(self._x[:, inputs].T, dy[:, units], gradients[weights.name][:, units])
        self.workspace.kernel(column_sums)(dy, gradients[bias.name])
        if not need_dx:
            return None
        dx = self.buffer("dx", self._x.shape, dy)
        for inputs, units in self._blocks:
            product(dy[:, units], views[weights.name][:, units].T, dx[:, inputs])
        return dx.reshape(len(dy), *self.input_shape)

    def torch(self, torch: ModuleType, x: Tensor, own: Mapping[str, Tensor], training: bool) -> Tensor:
        x = (x.permute(0, 2, 3, 1) if x.ndim == 4 else x).flatten(1)
        if self.columns == 1:
            return torch.addmm(own["bias"], x, own["weights"])
        inputs, weights = (part.unflatten(1, (self.columns, -1)) for part in (x, own["weights"]))
        return torch.einsum("nci,icu->ncu", inputs, weights).flatten(1) + own["bias"]

    def onnx(self, views: Views) -> list[OnnxNode]:
        weights, bias = ({p.name: views[p.name]} for p in self.parameters)
        nodes = [OnnxNode("Flatten", {}, {"axis": 1})] if len(self.input_shape) > 1 else []
        if self.columns == 1:
            return [*nodes, OnnxNode("Gemm", weights | bias)]
        name, inputs = self.parameters[0].name, self.parameters[0].shape[0]
        columns = weights[name].reshape(inputs, self.columns, -1).transpose(1, 0, 2)
        turned = OnnxNode("Transpose", {}, {"perm": [1, 0, 2]})
        return [
            *nodes,
            OnnxNode("Reshape", {f"{self.name}.inputs": np.array([0, self.columns, inputs])}),
            turned,
            OnnxNode("MatMul", {name: columns}),
            turned,
            OnnxNode("Reshape", {f"{self.name}.units": np.array([0, self.units])}),
            OnnxNode("Add", bias),
        ]


def column_blocks(inputs: int, units: int, columns: int) -> Blocks:
    """The columns that this many inputs and units are divided into evenly."""
    return [(share(inputs, c, columns), share(units, c, columns)) for c in range(columns)]
