"""The layers that a configuration can list, one table each: `[[model.layers]]` with `kind = "..."`.

A list of them says everything that a builder of any library needs to know: sizes, order, and initial values. Weights
are drawn from a normal distribution of mean 0 with the standard deviation `deviation`, by default √(`gain` / inputs of
a unit); `gain` = 2 preserves the variance through a ReLU (He et al. 2015), 1 without one.
"""

from collections.abc import Sequence
from math import log
from typing import Annotated, Any, Literal, get_args

import msgspec
import tomli_w

from mpitrain.errors import BadInput

Size = Annotated[int, msgspec.Meta(ge=1, le=10**9)]
Pixels = Annotated[int, msgspec.Meta(ge=1, le=10_000)]
Padding = Annotated[int, msgspec.Meta(ge=0, le=10_000)]
NotNegative = Annotated[float, msgspec.Meta(ge=0, le=1e30)]
Finite = Annotated[float, msgspec.Meta(ge=-1e30, le=1e30)]
Share = Annotated[float, msgspec.Meta(ge=0, lt=1)]

#: The function of the outputs.
Output = Literal["softmax", "logistic"]
#: When dropout multiplies what it keeps.
Scaled = Literal["training", "evaluation"]


class LayerOptions(msgspec.Struct, forbid_unknown_fields=True, frozen=True, tag_field="kind"):
    """A layer of a list; the tag is its `kind`."""

    @property
    def kind(self) -> str:
        """What the list calls it."""
        return str(self.__struct_config__.tag)


class ConvolutionOptions(LayerOptions, frozen=True, tag="convolution"):
    """`filters` square filters of side `kernel`, `stride` pixels apart, over an image with `pad` zeros at each edge;
    then, if `pool` is given, the maximum of windows of side `pool`, `pool_stride` apart (by default `pool`).

    With several `groups`, channels and filters are divided into as many equal parts, and each filter sees only the
    channels of its own group.
    """

    filters: Size
    kernel: Pixels
    stride: Pixels = 1
    pad: Padding = 0
    pool: Pixels | None = None
    pool_stride: Pixels | None = None
    groups: Size = 1
    gain: NotNegative = 2.0
    deviation: NotNegative | None = None
    bias: Finite = 0.0  # the initial one of every filter

    def __post_init__(self) -> None:
        if self.pad >= self.kernel:
            raise ValueError(f"pad = {self.pad}: at least the kernel's {self.kernel}; filters would see only zeros")


class MaxPoolOptions(LayerOptions, frozen=True, tag="max-pool"):
    """The maximum of windows of side `size` inside the image, `stride` apart (by default `size`)."""

    size: Pixels
    stride: Pixels | None = None


class LocalResponseNormOptions(LayerOptions, frozen=True, tag="local-response-norm"):
    """x / (offset + scale·Σ x²)^power, the sum over the `size` channels around each (Krizhevsky et al. 2012, §3.3).

    `scale` multiplies the sum, not the mean.
    """

    size: Pixels = 5
    scale: NotNegative = 1e-4
    power: NotNegative = 0.75
    offset: NotNegative = 2.0

    def __post_init__(self) -> None:
        if self.size % 2 == 0:
            raise ValueError(f"size = {self.size} is even: a window has one channel in its middle")


class ReluOptions(LayerOptions, frozen=True, tag="relu"):
    """max(x, 0)."""


class SigmoidOptions(LayerOptions, frozen=True, tag="sigmoid"):
    """1 / (1 + exp(−x))."""


class DropoutOptions(LayerOptions, frozen=True, tag="dropout"):
    """In training, each unit is set to 0 with probability `rate`, otherwise divided by 1 − rate. With `scaled =
    "evaluation"`, the form of 2012, it is left as it is instead, and multiplied by 1 − rate in evaluation: for rates
    and initial values that were found with that form."""

    rate: Share = 0.5
    scaled: Scaled = "training"


class FullyConnectedOptions(LayerOptions, frozen=True, tag="fully-connected"):
    """`units` sums of all inputs; the last one of a list has a unit for each class and may leave `units` out.

    With several `columns`, inputs and units are divided into as many equal parts, and each unit sees only the inputs of
    its own column. `bias` is 0 by default. That of logistic outputs is −ln(classes − 1), at which each begins at
    1/classes: from 0, the loss of C classes would begin at C·ln 2, and a training with 1000 diverges within a few
    steps.
    """

    units: Size | None = None
    columns: Size = 1
    gain: NotNegative = 2.0
    deviation: NotNegative | None = None
    bias: Finite | None = None


AnyLayer = (
    ConvolutionOptions
    | MaxPoolOptions
    | LocalResponseNormOptions
    | ReluOptions
    | SigmoidOptions
    | DropoutOptions
    | FullyConnectedOptions
)

KINDS: dict[str, type[LayerOptions]] = {str(kind.__struct_config__.tag): kind for kind in get_args(AnyLayer)}

KEY = "model.layers"


def check(layers: Sequence[AnyLayer]) -> None:
    """Raise BadInput naming the key of a list that is no network, whatever its inputs."""
    connected = [place for place, layer in enumerate(layers) if isinstance(layer, FullyConnectedOptions)]
    if not connected:
        raise BadInput(f'{KEY}: no layer of kind "fully-connected"; the last layer must be one, with a unit a class')
    last = connected[-1]
    if last + 1 < len(layers):
        after = layers[last + 1].kind
        raise BadInput(f"{KEY}[{last + 1}].kind = {after!r}: follows the last fully connected layer, the outputs")
    for place, layer in enumerate(layers[:-1]):
        if isinstance(layer, FullyConnectedOptions) and layer.units is None:
            raise BadInput(f"{KEY}[{place}].units: missing; only the last fully connected layer can leave it out")
    _check_activations(layers)


def _check_activations(layers: Sequence[AnyLayer]) -> None:
    """An activation works in place on the layer before it, whose output must be nobody else's."""
    before: AnyLayer | None = None
    for place, layer in enumerate(layers):
        if isinstance(layer, ReluOptions | SigmoidOptions) and (
            before is None or isinstance(before, ReluOptions | SigmoidOptions)
        ):
            why = "there is no layer before it" if before is None else f"it follows an activation, {before.kind!r}"
            raise BadInput(f"{KEY}[{place}].kind = {layer.kind!r}: {why}")
        before = before if isinstance(layer, DropoutOptions) else layer


def complete(layers: Sequence[AnyLayer], classes: int, output: Output) -> list[AnyLayer]:
    """The list with all numbers that depend on the classes and the function of the outputs.

    Raises BadInput if the last layer has other units.
    """
    last = layers[-1]
    if isinstance(last, FullyConnectedOptions) and last.units not in (None, classes):
        raise BadInput(f"{KEY}[{len(layers) - 1}].units = {last.units}: the data have {classes} classes; leave it out")
    outputs = -log(max(classes - 1, 1)) if output == "logistic" else 0.0
    ends = [0.0] * (len(layers) - 1) + [outputs]
    return [_complete(layer, classes, bias) for layer, bias in zip(layers, ends, strict=True)]


def _complete(layer: AnyLayer, units: int, bias: float) -> AnyLayer:
    if not isinstance(layer, FullyConnectedOptions):
        return layer
    own = layer.bias is not None
    return msgspec.structs.replace(layer, units=layer.units or units, bias=layer.bias if own else bias)


def to_lines(layers: Sequence[AnyLayer]) -> list[str]:
    """The key `layers` in lines of TOML, one for each layer with all its keys, which read back as them."""
    return ["layers = [", *(f"    {{ {', '.join(_assignments(layer))} }}," for layer in layers), "]"]


def _assignments(layer: AnyLayer) -> list[str]:
    values: dict[str, Any] = msgspec.to_builtins(layer)
    return [tomli_w.dumps({key: value}).rstrip("\n") for key, value in values.items() if value is not None]
