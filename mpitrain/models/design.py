"""What a network is built of: a list of layers and the function of its outputs.

The list says everything that a builder of any library needs to know: sizes, order, and initial values.
"""

from collections.abc import Sequence
from math import log
from typing import Any, NamedTuple

import msgspec
import tomli_w

from mpitrain.errors import BadInput
from mpitrain.models.layer import Activation
from mpitrain.models.layers import AnyLayer
from mpitrain.models.layers.dropout import DropoutOptions
from mpitrain.models.layers.fully_connected import FullyConnectedOptions
from mpitrain.models.losses import Output

KEY = "model.layers"


class Design(NamedTuple):
    """What a network is built of: its layers, the function of its outputs, and λ of λ/2·‖w‖² over the weights, with
    `l2_biases` over the biases, too.

    `preset` is its name, None for a list of layers in the configuration.
    """

    layers: list[AnyLayer]
    output: Output = "softmax"
    l2: float = 0.0
    l2_biases: bool = False
    preset: str | None = None

    @property
    def name(self) -> str:
        """What messages call the network."""
        return f"model.preset = {self.preset!r}" if self.preset else "model.layers"


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
    """An activation works in place on the output of the layer before it, which may not be an activation's."""
    before: AnyLayer | None = None
    for place, layer in enumerate(layers):
        if _activates(layer) and (before is None or _activates(before)):
            why = "there is no layer before it" if before is None else f"it follows an activation, {before.kind!r}"
            raise BadInput(f"{KEY}[{place}].kind = {layer.kind!r}: {why}")
        before = before if isinstance(layer, DropoutOptions) else layer


def _activates(layer: AnyLayer) -> bool:
    return issubclass(layer.layer, Activation)


def complete(layers: Sequence[AnyLayer], classes: int, output: Output) -> list[AnyLayer]:
    """The list, completed by the numbers that depend on the classes and the function of the outputs.

    Raises BadInput if the last layer has other units.
    """
    last = layers[-1]
    if isinstance(last, FullyConnectedOptions) and last.units not in (None, classes):
        raise BadInput(f"{KEY}[{len(layers) - 1}].units = {last.units}: the data have {classes} classes; leave it out")
    outputs = -log(max(classes - 1, 1)) if output == "logistic" else 0.0
    ends = [0.0] * (len(layers) - 1) + [outputs]
    return [
        msgspec.structs.replace(layer, units=layer.units or classes, bias=bias if layer.bias is None else layer.bias)
        if isinstance(layer, FullyConnectedOptions)
        else layer
        for layer, bias in zip(layers, ends, strict=True)
    ]


def to_lines(layers: Sequence[AnyLayer]) -> list[str]:
    """The key `layers` in lines of TOML, one for each layer with all its keys, which read back as them."""
    return ["layers = [", *(f"    {{ {', '.join(_assignments(layer))} }}," for layer in layers), "]"]


def _assignments(layer: AnyLayer) -> list[str]:
    values: dict[str, Any] = msgspec.to_builtins(layer)
    return [tomli_w.dumps({key: value}).rstrip("\n") for key, value in values.items() if value is not None]
