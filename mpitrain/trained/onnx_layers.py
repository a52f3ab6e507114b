"""Translate layers to ONNX nodes. Between the layers, images are [batch, c, h, w], as ONNX requires."""

from functools import singledispatch
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from mpitrain.errors import BadInput
from mpitrain.flat import Array
from mpitrain.models.activations import Relu, Sigmoid
from mpitrain.models.convolution import Convolution
from mpitrain.models.dropout import Dropout
from mpitrain.models.fully_connected import FullyConnected
from mpitrain.models.layer import Layer, Views
from mpitrain.models.normalisation import LocalResponseNorm
from mpitrain.models.pooling import MaxPool

if TYPE_CHECKING:
    from onnx import NodeProto, TensorProto


class Graph:
    """A sequence of nodes; `x` is the name of the latest value, `channels_first` whether its layout is [n, c, h, w]."""

    def __init__(self, onnx: ModuleType, x: str) -> None:
        self._onnx, self.x, self.channels_first = onnx, x, False
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []

    def add(self, operator: str, *more: str, **attributes: int | float | list[int]) -> None:
        """x ← operator(x, more...)."""
        out = f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(self._onnx.helper.make_node(operator, [self.x, *more], [out], **attributes))
        self.x = out

    def constant(self, name: str, array: Array) -> str:
        """Add a constant to the graph; return its name."""
        self.constants.append(self._onnx.numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def put_channels(self, first: bool) -> None:
        """Transpose images to this layout, if necessary."""
        if self.channels_first != first:
            self.add("Transpose", perm=[0, 3, 1, 2] if first else [0, 2, 3, 1])
            self.channels_first = first


@singledispatch
def translate(layer: Layer, graph: Graph, views: Views) -> None:
    """Add a layer's nodes. `views` are the parameters float32 by name."""
    raise BadInput(f"--format onnx: has nothing for the layer {layer.name}")


@translate.register
def _(layer: FullyConnected, graph: Graph, views: Views) -> None:
    graph.put_channels(first=False)  # the order of its inputs
    if len(layer.input_shape) > 1:
        graph.add("Flatten", axis=1)
    graph.add("Gemm", *(graph.constant(p.name, views[p.name]) for p in layer.parameters))


@translate.register
def _(layer: Convolution, graph: Graph, views: Views) -> None:
    graph.put_channels(first=True)
    weights, bias = layer.parameters
    filters = graph.constant(weights.name, views[weights.name].transpose(3, 2, 0, 1))
    shape = {"kernel_shape": [layer.kernel] * 2, "strides": [layer.stride] * 2, "pads": [layer.pad] * 4}
    graph.add("Conv", filters, graph.constant(bias.name, views[bias.name]), **shape)
    if layer.pool:
        translate(layer.pool, graph, views)


@translate.register
def _(layer: MaxPool, graph: Graph, views: Views) -> None:
    graph.put_channels(first=True)
    graph.add("MaxPool", kernel_shape=[layer.size] * 2, strides=[layer.stride] * 2)


@translate.register
def _(layer: LocalResponseNorm, graph: Graph, views: Views) -> None:
    graph.put_channels(first=True)
    size = 2 * layer.half + 1  # ONNX divides alpha by this
    graph.add("LRN", size=size, alpha=layer.scale * size, beta=layer.power, bias=layer.offset)


@translate.register
def _(layer: Relu, graph: Graph, views: Views) -> None:
    graph.add("Relu")


@translate.register
def _(layer: Sigmoid, graph: Graph, views: Views) -> None:
    graph.add("Sigmoid")


@translate.register
def _(layer: Dropout, graph: Graph, views: Views) -> None:
    """Add nothing, since its scale is applied in training."""
