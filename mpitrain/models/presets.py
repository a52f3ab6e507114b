"""The papers' networks by name. The docstring of a preset says which sizes the paper leaves open."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from math import sqrt
from typing import Any

from mpitrain.errors import BadInput
from mpitrain.models.design import Design
from mpitrain.models.layers import AnyLayer
from mpitrain.models.layers.convolution import ConvolutionOptions
from mpitrain.models.layers.dropout import DropoutOptions, Scaled
from mpitrain.models.layers.fully_connected import FullyConnectedOptions
from mpitrain.models.layers.local_response_norm import LocalResponseNormOptions
from mpitrain.models.layers.max_pool import MaxPoolOptions
from mpitrain.models.layers.relu import ReluOptions
from mpitrain.models.layers.sigmoid import SigmoidOptions
from mpitrain.models.losses import Output


@dataclass(frozen=True)
class PresetOptions:
    """What a configuration may change of a preset. `width` multiplies every hidden size; `dropout` and `hidden_layers`,
    unless None, replace the paper's values; the others are those of a `Design`."""

    width: float = 1.0
    dropout: float | None = None
    hidden_layers: int | None = None
    output: Output = "softmax"
    l2: float = 0.0
    l2_biases: bool = False

    def units(self, number: int) -> int:
        """A hidden size after scaling, at least 1."""
        return max(1, round(self.width * number))

    def drop(self, rate: float = 0.5, scaled: Scaled = "training") -> DropoutOptions:
        """Dropout at the paper's rate, unless it is overridden."""
        return DropoutOptions(rate if self.dropout is None else self.dropout, scaled)

    def classes(self, bias: float) -> FullyConnectedOptions:
        """The outputs of a paper that gives their bias. Logistic outputs do not take it: they begin at 1/classes."""
        return FullyConnectedOptions(gain=1.0, bias=bias if self.output == "softmax" else None)


Layers = Callable[[PresetOptions], list[AnyLayer]]


def convolution(o: PresetOptions, filters: int, kernel: int, stride: int = 1, **more: Any) -> list[AnyLayer]:
    """A convolution of ReLUs, with `more` of its options."""
    return [ConvolutionOptions(o.units(filters), kernel, stride, **more), ReluOptions()]


def connected(o: PresetOptions, units: int, drop: DropoutOptions | None = None, **more: Any) -> list[AnyLayer]:
    """Fully connected ReLUs, with `more` options, and dropout, by default the papers'."""
    return [FullyConnectedOptions(o.units(units), **more), ReluOptions(), drop or o.drop()]


def digits_cnn(o: PresetOptions) -> list[AnyLayer]:
    """Our own network for the embedded 8 x 8 digits: conv 16 x 3², pool 2, conv 32 x 3², fc 64."""
    return [
        *convolution(o, 16, 3, pad=1, pool=2),
        *convolution(o, 32, 3, pad=1),
        *connected(o, 64, o.drop(0.0)),
        FullyConnectedOptions(gain=1.0),
    ]


def chan2014_cnn(o: PresetOptions) -> list[AnyLayer]:
    """Chan & Lane 2014 Figure 2, sizes ours: 23 x 23 log-mel, two convolutions, two fully connected of 1024.

    §5: "biases set to a small positive value"; 0.1 is ours.
    """
    layers = [*convolution(o, 64, 5, pool=2, bias=0.1), *convolution(o, 128, 3, pool=2, bias=0.1)]
    return [*layers, *connected(o, 1024, bias=0.1) * 2, o.classes(bias=0.1)]


def chan2014_dnn(o: PresetOptions) -> list[AnyLayer]:
    """Chan & Lane 2014's baseline: five fully connected ReLU layers with 50 % dropout; the width, 1024, is ours.

    Biases are those of `chan2014_cnn`.
    """
    return [*connected(o, 1024, bias=0.1) * (o.hidden_layers or 5), o.classes(bias=0.1)]


def sigmoid_dnn(units: int, o: PresetOptions) -> list[AnyLayer]:
    """Hidden sigmoid layers of `units`, five unless `hidden_layers` says otherwise."""
    layers: list[AnyLayer] = []
    for depth in range(o.hidden_layers or 5):
        # A sigmoid's slope is at most 1/4, and less where it saturates. With the usual gain of 1, five layers of 154
        # units did not learn the digits in 12 epochs of SGD; with 16 they reached 7 % test error, with 32 2 %.
        layers += [FullyConnectedOptions(o.units(units), gain=32.0 if depth else 2.0), SigmoidOptions()]
        if o.dropout:
            layers.append(o.drop())
    return [*layers, FullyConnectedOptions(gain=1.0)]


def zhang2013_dnn(o: PresetOptions) -> list[AnyLayer]:
    """Zhang et al. 2013 §4.1: 11 frames x 42, 5 x 2048 sigmoid, 10217 softmax."""
    return sigmoid_dnn(2048, o)


def strom2015_dnn(o: PresetOptions) -> list[AnyLayer]:
    """Strom 2015 §3.3: 17 frames x 20, 5 sigmoid layers, 14.6 M weights: 1536 wide with 3000 outputs."""
    return sigmoid_dnn(1536, o)


def easgd_cifar(o: PresetOptions) -> list[AnyLayer]:
    """Zhang, Choromanska, LeCun 2015 §5.1: (3,28)C(64,24)P(64,12)C(128,8)P(128,4)C(64,2)D(256,1)S(10,1)."""
    return [
        *convolution(o, 64, 5, pool=2),
        *convolution(o, 128, 5, pool=2),
        *convolution(o, 64, 3),
        *connected(o, 256),
        FullyConnectedOptions(gain=1.0),
    ]


def easgd_imagenet(o: PresetOptions) -> list[AnyLayer]:
    """Zhang, Choromanska, LeCun 2015 §5.1, biases 0.1.

    (3,221)C(96,108)P(96,36)C(256,32)P(256,16)C(384,14)C(384,13)C(256,12)P(256,6)D(4096,1)D(4096,1)S(1000,1)
    """
    return [
        *convolution(o, 96, 7, 2, pool=3, bias=0.1),
        *convolution(o, 256, 5, pool=2, bias=0.1),
        *convolution(o, 384, 3, bias=0.1),
        *convolution(o, 384, 2, bias=0.1),
        *convolution(o, 256, 2, pool=2, bias=0.1),
        *connected(o, 4096, bias=0.1) * 2,
        o.classes(bias=0.1),
    ]


def krizhevsky2014(o: PresetOptions) -> list[AnyLayer]:
    """Krizhevsky 2014's single tower: 224 x 224 x 3, 9216 activations before the fully connected layers, 1000
    independent logistic units. Sizes, order, normalisation, dropout and initial values are those that the author
    released; the 224 x 224 pixels and the padding are the paper's (his 223 x 223 without padding give the same sizes).
    Dropout is scaled in evaluation, as his: divided by 1/2 in training, activations would not fit his learning rates.

    The fourth convolution has 256 filters, as the author released it, which makes 61,100,840 parameters: 0.2 % more
    than the 60,965,224 of two towers, as the text says. Footnote 1's 384 filters would make 61,838,248, 1.4 % more.

    Standard deviations are those of full width; at another they keep the variance of a unit's sum. They are made
    for pixels up to 255 less their mean (`data.normalise = "mean"`). The author's biases of -7 for 1000 outputs are
    -ln(999) = -6.9 here, and fit any number of classes.
    """
    small, large = 0.01 / sqrt(o.width), 0.03 / sqrt(o.width)
    norm = LocalResponseNormOptions(size=5, scale=1e-4 / 5)  # he divides the paper's 1e-4 by the size of the window
    return [
        ConvolutionOptions(o.units(64), 11, stride=4, pad=2, deviation=0.01),  # from three channels at any width
        norm,
        MaxPoolOptions(3, 2),
        ReluOptions(),
        *convolution(o, 192, 5, pad=2, deviation=small, bias=1.0),
        norm,
        MaxPoolOptions(3, 2),
        *convolution(o, 384, 3, pad=1, deviation=large),
        *convolution(o, 256, 3, pad=1, deviation=large, bias=1.0),
        *convolution(o, 256, 3, pad=1, pool=3, pool_stride=2, deviation=large, bias=1.0),
        *connected(o, 4096, o.drop(scaled="evaluation"), deviation=small, bias=1.0) * 2,
        FullyConnectedOptions(deviation=small),
    ]


@dataclass(frozen=True)
class Preset:
    """A network's layers; the shape of an input, the number of classes, and the options of its paper."""

    layers: Layers
    inputs: tuple[int, ...]
    classes: int
    options: PresetOptions = PresetOptions()
    #: Whether `hidden_layers` may be given.
    depth: bool = False
    #: Whether it is made for windows of frames rather than for images.
    frames: bool = False


#: The preset of a configuration that names no network.
DEFAULT = "digits-cnn"

PRESETS = {
    "digits-cnn": Preset(digits_cnn, (8, 8, 1), 10),
    "chan2014-cnn": Preset(chan2014_cnn, (23, 23), 1998, frames=True),
    "chan2014-dnn": Preset(chan2014_dnn, (23, 23), 1998, depth=True, frames=True),
    "zhang2013-dnn": Preset(zhang2013_dnn, (11, 42), 10217, depth=True, frames=True),
    "easgd-cifar": Preset(easgd_cifar, (28, 28, 3), 10, PresetOptions(l2=1e-4, l2_biases=True)),
    "easgd-imagenet": Preset(easgd_imagenet, (221, 221, 3), 1000, PresetOptions(l2=1e-5, l2_biases=True)),
    "krizhevsky2014": Preset(krizhevsky2014, (224, 224, 3), 1000, PresetOptions(output="logistic")),
    "strom2015-dnn": Preset(strom2015_dnn, (17, 20), 3000, depth=True, frames=True),
}


def design(preset: str, **changes: Any) -> Design:
    """What a preset is built of; `changes` of its `PresetOptions`, where None means the paper's value.

    Raises BadInput for an unknown name, listing the known ones, or a depth that cannot be chosen.
    """
    if preset not in PRESETS:
        near = get_close_matches(preset, PRESETS, 1, 0.75)
        nearest = f"the nearest is {near[0]!r} of" if near else "known:"
        raise BadInput(f"model.preset: unknown {preset!r}; {nearest} {', '.join(PRESETS)}")
    known = PRESETS[preset]
    o = replace(known.options, **{name: value for name, value in changes.items() if value is not None})
    if o.hidden_layers is not None and not known.depth:
        raise BadInput(f"model.hidden_layers: {preset} has a fixed number of layers")
    return Design(known.layers(o), o.output, o.l2, o.l2_biases, preset)
