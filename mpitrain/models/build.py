"""Networks of our own layers, made of a list of the table or of a preset."""

from functools import singledispatch
from typing import Any

from mpitrain.errors import BadInput
from mpitrain.models import table
from mpitrain.models.activations import Relu, Sigmoid
from mpitrain.models.convolution import Convolution
from mpitrain.models.dropout import Dropout
from mpitrain.models.fully_connected import FullyConnected
from mpitrain.models.layer import DoesNotFit, Layer, Shape
from mpitrain.models.losses import LOSSES
from mpitrain.models.network import Network
from mpitrain.models.normalisation import LocalResponseNorm
from mpitrain.models.pooling import MaxPool
from mpitrain.models.presets import PRESETS, Design, design
from mpitrain.models.workspace import Workspace


def build(
    preset: str, input_shape: Shape, classes: int, *, workspace: Workspace | None = None, **options: Any
) -> Network:
    """The network of a preset with the options of `design`, as `network` builds it."""
    return network(design(preset, **options), input_shape, classes, workspace)


def network(made: Design, input_shape: Shape, classes: int, workspace: Workspace | None = None) -> Network:
    """The network of a design, on the CPU unless `workspace` is another device's.

    `input_shape` is that of one example: (h, w, c), or frames (window, dims), which are one channel for convolutions.
    Raises BadInput naming the key of a layer that does not fit them, or the preset.
    """
    if classes < 1:
        raise BadInput(f"{made.name}: {classes} classes")
    layers, shape = [make(layer) for layer in table.complete(made.layers, classes, made.output)], tuple(input_shape)
    if len(shape) == 2 and _wants_images(made):
        shape = (*shape, 1)
    try:
        loss = LOSSES[made.output]()
        return Network(layers, shape, loss, l2=made.l2, l2_biases=made.l2_biases, workspace=workspace, name=made.name)
    except DoesNotFit as error:
        raise BadInput(_misfit(made, tuple(input_shape), error)) from None


def _wants_images(made: Design) -> bool:
    """Whether a layer that works on images comes before the fully connected ones."""
    before = [layer for layer in made.layers if not isinstance(layer, table.DropoutOptions)]
    return isinstance(before[0], table.ConvolutionOptions | table.MaxPoolOptions | table.LocalResponseNormOptions)


@singledispatch
def make(layer: table.LayerOptions) -> Layer:
    """The layer that a table describes, whose numbers are all known."""
    raise NotImplementedError(f"no layer of kind {layer.kind}")


@make.register
def _(layer: table.ConvolutionOptions) -> Layer:
    pool = MaxPool(layer.pool, layer.pool_stride) if layer.pool else None
    geometry = layer.filters, layer.kernel, layer.stride, layer.pad, pool
    return Convolution(*geometry, deviation=layer.deviation, bias=layer.bias, gain=layer.gain, groups=layer.groups)


@make.register
def _(layer: table.FullyConnectedOptions) -> Layer:
    assert layer.units is not None and layer.bias is not None
    return FullyConnected(layer.units, layer.deviation, layer.bias, layer.gain, layer.columns)


@make.register
def _(layer: table.MaxPoolOptions) -> Layer:
    return MaxPool(layer.size, layer.stride)


@make.register
def _(layer: table.LocalResponseNormOptions) -> Layer:
    return LocalResponseNorm(layer.size, layer.scale, layer.power, layer.offset)


@make.register
def _(layer: table.DropoutOptions) -> Layer:
    return Dropout(layer.rate, layer.scaled)


@make.register
def _(layer: table.ReluOptions) -> Layer:
    return Relu()


@make.register
def _(layer: table.SigmoidOptions) -> Layer:
    return Sigmoid()


def _misfit(made: Design, shape: Shape, error: DoesNotFit) -> str:
    """A message that names the key at fault."""
    if made.preset is None:
        value = getattr(made.layers[error.place], error.key)
        return f"{table.KEY}[{error.place}].{error.key} = {value!r}: {error.why}"
    return f"model.preset: {made.preset} does not fit {_described(shape)}: {error}{_better(shape, made.preset)}"


def _described(shape: Shape) -> str:
    """A description of the inputs for messages."""
    kind = "windows of frames" if len(shape) == 2 else "images" if len(shape) == 3 else "inputs"
    return f"{kind} of {' x '.join(map(str, shape))}"


def _better(shape: Shape, preset: str) -> str:
    """If the inputs are windows of frames but the network is made for images, a list of the presets for frames."""
    if len(shape) != 2 or PRESETS[preset].frames:
        return ""
    return f"; for frames: {', '.join(name for name, known in PRESETS.items() if known.frames)}"
