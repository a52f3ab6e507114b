"""A trained network as a complete ONNX graph: from raw features or pixels to posteriors.

Input: `features` float32 [batch, window, dims], frames as in the shards with their neighbours (repeating the first or
last frame of an utterance at its ends), or `images` [batch, h, w, c]. The graph contains normalisation, centre crop,
layers and softmax or logistic function. Between the layers, images are [batch, c, h, w], as ONNX requires.
"""

from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from mpitrain.errors import BadInput, library
from mpitrain.flat import Array
from mpitrain.models.network import network_of_layers
from mpitrain.trained.model import TrainedModel
from mpitrain.training.parts import form_of

if TYPE_CHECKING:
    from onnx import NodeProto, TensorProto

DESCRIPTION = "A trained network as a complete ONNX graph: from raw features or pixels to posteriors."
OPSET = 17
OLDEST = 13  # the first version in which Softmax works on one axis
LARGEST = (1 << 31) - (1 << 20)  # most bytes of a protocol buffer


@dataclass(frozen=True)
class GraphOptions:
    """`kind`: one of cli.arguments.KINDS; `image_type`: "uint8" or "float32", images only; `log_priors` [classes]."""

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
        if layer.onnx_channels_first is not None:
            graph.put_channels(layer.onnx_channels_first)
        for node in layer.onnx(views):
            constants = [graph.constant(name, array) for name, array in node.constants.items()]
            graph.add(node.operator, *constants, **node.attributes)
    _finish(graph, model.network.output, options)
    graph.nodes[-1].output[0] = name = options.kind.replace("-", "_")
    out = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", model.origin.classes])
    inputs = [onnx.helper.make_tensor_value_info(source, kind, ["batch", *shape])]
    whole = onnx.helper.make_graph(graph.nodes, "mpitrain", inputs, [out], graph.constants)
    opsets = [onnx.helper.make_opsetid("", options.opset)]
    version = onnx.helper.find_min_ir_version_for(opsets)
    made = onnx.helper.make_model(
        whole, opset_imports=opsets, ir_version=version, producer_name="mpitrain", doc_string=DESCRIPTION
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
    return "features", form_of(model.config, model.origin).shape, "float32"


def _normalise(graph: Graph, model: TrainedModel) -> None:
    """Add (x − mean)·scale with the corpus's statistics, after the centre crop of images. Statistics of speakers cannot
    be included."""
    origin, data = model.origin, model.config.data
    if origin.kind == "images":
        if data.crop:
            starts = np.array([(length - data.crop) // 2 for length in origin.shape[:2]])
            bounds = {"crop_starts": starts, "crop_ends": starts + data.crop, "crop_axes": np.array([1, 2])}
            graph.add("Slice", *(graph.constant(name, array) for name, array in bounds.items()))
        graph.add("Cast", to=1)  # FLOAT
    elif data.normalise != "corpus":
        return
    mean, scale = model.moments()
    graph.add("Sub", graph.constant("mean", mean))
    graph.add("Mul", graph.constant("scale", scale))


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
