"""The papers' networks by name. The docstring of a preset says which sizes the paper leaves open."""

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from mpitrain.errors import BadInput
from mpitrain.models.activations import Relu, Sigmoid
from mpitrain.models.convolution import Convolution
from mpitrain.models.dropout import Dropout
from mpitrain.models.fully_connected import FullyConnected
from mpitrain.models.layer import Layer, Shape
from mpitrain.models.losses import LOSSES
from mpitrain.models.network import Network
from mpitrain.models.normalisation import LocalResponseNorm
from mpitrain.models.pooling import MaxPool
from mpitrain.models.workspace import Workspace


@dataclass(frozen=True)
class Options:
    """`width` multiplies every hidden size; the other options, unless None, replace the paper's values."""

    width: float = 1.0
    dropout: float | None = None
    hidden_layers: int | None = None

    def units(self, number: int) -> int:
        """A hidden size after scaling, at least 1."""
        return max(1, round(self.width * number))

    def drop(self, rate: float = 0.5) -> Dropout:
        """Dropout at the paper's rate, unless it is overridden."""
        return Dropout(rate if self.dropout is None else self.dropout)


Build = Callable[[int, Options], list[Layer]]


def digits_cnn(classes: int, o: Options) -> list[Layer]:
    """Our own network for the embedded 8 x 8 digits: conv 16 x 3², pool 2, conv 32 x 3², fc 64."""
    return [
        Convolution(o.units(16), 3, pad=1, pool=MaxPool(2)),
        Relu(),
        Convolution(o.units(32), 3, pad=1),
        Relu(),
        FullyConnected(o.units(64)),
        Relu(),
        o.drop(0.0),
        FullyConnected(classes, gain=1.0),
    ]


def chan2014_cnn(classes: int, o: Options) -> list[Layer]:
    """Chan & Lane 2014 Figure 2, sizes ours: 23 x 23 log-mel, two convolutions, two fully connected of 1024."""
    layers: list[Layer] = []
    for filters, kernel in ((64, 5), (128, 3)):
        layers += [Convolution(o.units(filters), kernel, pool=MaxPool(2), bias=0.1), Relu()]
    for _ in range(2):
        layers += [FullyConnected(o.units(1024), bias=0.1), Relu(), o.drop()]
    return [*layers, FullyConnected(classes, gain=1.0)]


def chan2014_dnn(classes: int, o: Options) -> list[Layer]:
    """Chan & Lane 2014's baseline: five fully connected ReLU layers with 50 % dropout; the width, 1024, is ours."""
    layers: list[Layer] = []
    for _ in range(o.hidden_layers or 5):
        layers += [FullyConnected(o.units(1024), bias=0.1), Relu(), o.drop()]
    return [*layers, FullyConnected(classes, gain=1.0)]


def sigmoid_dnn(units: int, classes: int, o: Options) -> list[Layer]:
    """Hidden sigmoid layers of `units`, five unless `hidden_layers` says otherwise."""
    layers: list[Layer] = []
    for depth in range(o.hidden_layers or 5):
        # A sigmoid's slope is at most 1/4, and less where it saturates. With the usual gain of 1, five layers of 154
        # units did not learn the digits in 12 epochs of SGD; with 16 they reached 7 % test error, with 32 2 %.
        layers += [FullyConnected(o.units(units), gain=32.0 if depth else 2.0), Sigmoid()]
        if o.dropout:
            layers.append(o.drop())
    return [*layers, FullyConnected(classes, gain=1.0)]


def zhang2013_dnn(classes: int, o: Options) -> list[Layer]:
    """Zhang et al. 2013 §4.1: 11 frames x 42, 5 x 2048 sigmoid, 10217 softmax."""
    return sigmoid_dnn(2048, classes, o)


def strom2015_dnn(classes: int, o: Options) -> list[Layer]:
    """Strom 2015 §3.3: 17 frames x 20, 5 sigmoid layers, 14.6 M weights: 1536 wide with 3000 outputs."""
    return sigmoid_dnn(1536, classes, o)


def easgd_cifar(classes: int, o: Options) -> list[Layer]:
    """Zhang, Choromanska, LeCun 2015 §5.1: (3,28)C(64,24)P(64,12)C(128,8)P(128,4)C(64,2)D(256,1)S(10,1)."""
    return [
        Convolution(o.units(64), 5, pool=MaxPool(2)),
        Relu(),
        Convolution(o.units(128), 5, pool=MaxPool(2)),
        Relu(),
        Convolution(o.units(64), 3),
        Relu(),
        FullyConnected(o.units(256)),
        Relu(),
        o.drop(),
        FullyConnected(classes, gain=1.0),
    ]


def easgd_imagenet(classes: int, o: Options) -> list[Layer]:
    """Zhang, Choromanska, LeCun 2015 §5.1, biases 0.1.

    (3,221)C(96,108)P(96,36)C(256,32)P(256,16)C(384,14)C(384,13)C(256,12)P(256,6)D(4096,1)D(4096,1)S(1000,1)
    """
    convolutions = ((96, 7, 2, 3), (256, 5, 1, 2), (384, 3, 1, 0), (384, 2, 1, 0), (256, 2, 1, 2))
    layers: list[Layer] = []
    for filters, kernel, stride, pool in convolutions:
        pooling = MaxPool(pool) if pool else None
        layers += [Convolution(o.units(filters), kernel, stride, pool=pooling, bias=0.1), Relu()]
    for _ in range(2):
        layers += [FullyConnected(o.units(4096), bias=0.1), Relu(), o.drop()]
    return [*layers, FullyConnected(classes, gain=1.0, bias=0.1)]


def krizhevsky2014(classes: int, o: Options) -> list[Layer]:
    """Krizhevsky 2014's single tower, sizes from the author's released configuration: 224 x 224 x 3, 9216 activations
    before the fully connected layers, 1000 independent logistic units."""
    layers: list[Layer] = [
        Convolution(o.units(64), 11, stride=4, pad=2),
        Relu(),
        LocalResponseNorm(),
        MaxPool(3, 2),
        Convolution(o.units(192), 5, pad=2),
        Relu(),
        LocalResponseNorm(),
        MaxPool(3, 2),
        Convolution(o.units(384), 3, pad=1),
        Relu(),
        Convolution(o.units(256), 3, pad=1),
        Relu(),
        Convolution(o.units(256), 3, pad=1, pool=MaxPool(3, 2)),
        Relu(),
    ]
    for _ in range(2):
        layers += [FullyConnected(o.units(4096)), Relu(), o.drop()]
    return [*layers, FullyConnected(classes, gain=1.0)]


@dataclass(frozen=True)
class Preset:
    """The layers of a network, with the paper's outputs and l2."""

    layers: Build
    output: str = "softmax"
    l2: float = 0.0
    #: Whether `hidden_layers` may be given.
    depth: bool = False
    #: Whether it is made for windows of frames rather than for images.
    frames: bool = False


PRESETS = {
    "digits-cnn": Preset(digits_cnn),
    "chan2014-cnn": Preset(chan2014_cnn, frames=True),
    "chan2014-dnn": Preset(chan2014_dnn, depth=True, frames=True),
    "zhang2013-dnn": Preset(zhang2013_dnn, depth=True, frames=True),
    "easgd-cifar": Preset(easgd_cifar, l2=1e-4),
    "easgd-imagenet": Preset(easgd_imagenet, l2=1e-5),
    "krizhevsky2014": Preset(krizhevsky2014, output="logistic"),
    "strom2015-dnn": Preset(strom2015_dnn, depth=True, frames=True),
}


def build(
    preset: str,
    input_shape: Shape,
    classes: int,
    *,
    width: float = 1.0,
    output: str | None = None,
    l2: float | None = None,
    dropout: float | None = None,
    hidden_layers: int | None = None,
    workspace: Workspace | None = None,
) -> Network:
    """The network of a preset. None means the paper's value, or for `workspace` the CPU's.

    `input_shape` is that of one example: (h, w, c), or frames (window, dims), which are one channel for convolutions.
    Raises BadInput for an unknown name (listing the known ones), a number out of range, or an input that is too small.
    """
    known = _lookup("model.preset", preset, PRESETS)
    loss = _lookup("model.output", known.output if output is None else output, LOSSES)
    _check(width > 0, f"model.width: {width} is not above 0")
    _check(classes > 0, f"{preset}: {classes} classes")
    _check(l2 is None or l2 >= 0, f"model.l2: {l2} is below 0")
    _check(dropout is None or 0 <= dropout < 1, f"model.dropout: {dropout} is not in [0, 1)")
    _check(hidden_layers is None or hidden_layers > 0, f"model.hidden_layers: {hidden_layers} is not above 0")
    _check(hidden_layers is None or known.depth, f"model.hidden_layers: {preset} has a fixed number of layers")
    layers = known.layers(classes, Options(width, dropout, hidden_layers))
    shape = tuple(input_shape)
    if len(shape) == 2 and isinstance(layers[0], Convolution):
        shape = (*shape, 1)
    _check(
        not isinstance(layers[0], Convolution) or len(shape) == 3, f"model.preset: {preset} wants images, not {shape}"
    )
    try:
        return Network(
            layers,
            shape,
            loss(),
            l2=known.l2 if l2 is None else l2,
            workspace=workspace,
            name=f"model.preset = {preset!r}",
        )
    except BadInput as error:
        raise BadInput(
            f"model.preset: {preset} does not fit {_described(input_shape)}: {error}{_better(input_shape, known)}"
        ) from None


def _check(condition: bool, message: str) -> None:
    if not condition:
        raise BadInput(message)


def _lookup(key: str, name: str, table: dict[str, Any]) -> Any:
    if name not in table:
        near = get_close_matches(name, table, 1, 0.75)
        nearest = f"the nearest is {near[0]!r} of" if near else "known:"
        raise BadInput(f"{key}: unknown {name!r}; {nearest} {', '.join(table)}")
    return table[name]


def _described(shape: Shape) -> str:
    """A description of the inputs for messages."""
    kind = "windows of frames" if len(shape) == 2 else "images" if len(shape) == 3 else "inputs"
    return f"{kind} of {' x '.join(map(str, shape))}"


def _better(shape: Shape, known: Preset) -> str:
    """If the inputs are windows of frames but the network is made for images, a list of the presets for frames."""
    if len(shape) != 2 or known.frames:
        return ""
    return f"; for frames: {', '.join(name for name, preset in PRESETS.items() if preset.frames)}"
