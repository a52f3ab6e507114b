"""A trained network as a complete ONNX graph: from raw features or pixels to posteriors.

Input: `features` float32 [batch, window, dims], frames as in the shards with their neighbours (repeating the first or
last frame of an utterance at its ends), or `images` [batch, h, w, c]. The graph contains normalisation, centre crop,
layers and softmax or logistic function. Between the layers, images are [batch, c, h, w], as ONNX requires.
"""

from dataclasses import dataclass
from functools import singledispatch
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from mpitrain.errors import BadInput, library
from mpitrain.flat import Array
from mpitrain.models.activations import Relu, Sigmoid
from mpitrain.models.convolution import Convolution
from mpitrain.models.dropout import Dropout
from mpitrain.models.fully_connected import FullyConnected
from mpitrain.models.layer import Layer, Views
from mpitrain.models.network import network_of_layers
from mpitrain.models.normalisation import LocalResponseNorm
from mpitrain.models.pooling import MaxPool
from mpitrain.trained.model import TrainedModel
from mpitrain.training.inputs import seen_shape

if TYPE_CHECKING:
    from onnx import NodeProto, TensorProto

OPSET = 17
OLDEST = 13  # the first version in which Softmax works on one axis
LARGEST = (1 << 31) - (1 << 20)  # most bytes of a protocol buffer


@dataclass(frozen=True)
class GraphOptions:
    """`kind`: one of commands.KINDS; `image_type`: "uint8" or "float32", for images only; `log_priors` [classes]."""

    kind: str = "posteriors"
    opset: int = OPSET
    image_type: str | None = None
    log_priors: Array | None = None


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
    weights, bias = layer.parameters
    if layer.columns == 1:
        graph.add("Gemm", *(graph.constant(p.name, views[p.name]) for p in layer.parameters))
        return
    inputs = weights.shape[0]
    columns = views[weights.name].reshape(inputs, layer.columns, -1).transpose(1, 0, 2)
    graph.add("Reshape", graph.constant(f"{layer.name}.inputs", np.array([0, layer.columns, inputs])))
    graph.add("Transpose", perm=[1, 0, 2])
    graph.add("MatMul", graph.constant(weights.name, columns))
    graph.add("Transpose", perm=[1, 0, 2])
    graph.add("Reshape", graph.constant(f"{layer.name}.units", np.array([0, layer.units])))
    graph.add("Add", graph.constant(bias.name, views[bias.name]))


@translate.register
def _(layer: Convolution, graph: Graph, views: Views) -> None:
    graph.put_channels(first=True)
    weights, bias = layer.parameters
    filters = graph.constant(weights.name, views[weights.name].transpose(3, 2, 0, 1))
    shape = {"kernel_shape": [layer.kernel] * 2, "strides": [layer.stride] * 2, "pads": [layer.pad] * 4}
    graph.add("Conv", filters, graph.constant(bias.name, views[bias.name]), group=layer.groups, **shape)
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
    """Add nothing, unless it is scaled in evaluation."""
    if layer.evaluated != 1:
        graph.add("Mul", graph.constant(f"{layer.name}.scale", np.array(layer.evaluated, np.float32)))


def serialise(model: TrainedModel, options: GraphOptions, metadata: dict[str, str]) -> bytes:
    """The ONNX file. Raises BadInput naming the option, or the library that is missing."""
    onnx = library("onnx", "--format onnx needs onnx", "onnx")
    newest = onnx.defs.onnx_opset_version()
    if not OLDEST <= options.opset <= newest:
        raise BadInput(f"--opset {options.opset}: from {OLDEST} to {newest}")
    if model.parameters.size * 4 > LARGEST:
        raise BadInput("--format onnx: more than 2 GB of parameters do not fit an ONNX file; safetensors holds them")
    layers = network_of_layers(model.network, "layers", "--format onnx").layers
    source, shape, dtype = given(model, options)
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = Graph(onnx, source)
    _normalise(graph, model)
    views = model.network.layout.views(model.parameters.astype(np.float32))
    if len(model.network.input_shape) > len(shape):  # frames as images of one channel
        graph.add("Unsqueeze", graph.constant("last_axis", np.array([-1])))
    for layer in layers:
        translate(layer, graph, views)
    _finish(graph, model.output, options)
    graph.nodes[-1].output[0] = name = options.kind.replace("-", "_")
    out = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", model.origin.classes])
    inputs = [onnx.helper.make_tensor_value_info(source, kind, ["batch", *shape])]
    whole = onnx.helper.make_graph(graph.nodes, "mpitrain", inputs, [out], graph.constants)
    opsets = [onnx.helper.make_opsetid("", options.opset)]
    version = onnx.helper.find_min_ir_version_for(opsets)
    made = onnx.helper.make_model(
        whole, opset_imports=opsets, ir_version=version, producer_name="mpitrain", doc_string=__doc__.partition("\n")[0]
    )
    onnx.helper.set_model_props(made, metadata)
    onnx.checker.check_model(made, full_check=True)
    return bytes(made.SerializeToString())


def given(model: TrainedModel, options: GraphOptions) -> tuple[str, tuple[int, ...], str]:
    """Name, shape without the batch, and type of the input. Raises BadInput if --input does not fit it."""
    if model.origin.kind == "images":
        return "images", tuple(model.origin.shape), options.image_type or "uint8"
    if options.image_type is not None:
        raise BadInput(f"--input {options.image_type}: only for images; features are float32")
    return "features", seen_shape(model.config, model.origin), "float32"


def _normalise(graph: Graph, model: TrainedModel) -> None:
    """Add (x − mean)·scale as in the corpus, after the centre crop of images. Statistics of speakers cannot be
    included."""
    origin, data = model.origin, model.config.data
    if origin.kind == "images":
        if data.crop:
            _crop(graph, origin.shape, data.crop)
        graph.add("Cast", to=1)  # FLOAT
    elif data.normalise != "corpus":
        return
    mean, scale = model.moments()
    graph.add("Sub", graph.constant("mean", mean))
    graph.add("Mul", graph.constant("scale", scale))


def _crop(graph: Graph, shape: list[int], side: int) -> None:
    starts = np.array([(length - side) // 2 for length in shape[:2]])
    bounds = (("crop_starts", starts), ("crop_ends", starts + side), ("crop_axes", np.array([1, 2])))
    graph.add("Slice", *(graph.constant(name, array) for name, array in bounds))


def _finish(graph: Graph, output: str, options: GraphOptions) -> None:
    if output == "softmax":
        graph.add("Softmax" if options.kind == "posteriors" else "LogSoftmax", axis=1)
    elif options.kind == "posteriors":
        graph.add("Sigmoid")
    else:  # log(1 / (1 + exp(−z))) = −softplus(−z)
        for operator in ("Neg", "Softplus", "Neg"):
            graph.add(operator)
    if options.log_priors is not None:
        graph.add("Sub", graph.constant("log_priors", options.log_priors.astype(np.float32)))
