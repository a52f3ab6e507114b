"""Networks that a deep one grows from: its first layers, alone or under an output layer of their own."""

import copy

from mpitrain.models.layer import Layer
from mpitrain.models.network import Network


def depth(network: Network) -> int:
    """How many hidden layers with parameters there are."""
    return len(_starts(network)) - 1


def hidden_layers(network: Network, count: int) -> list[Layer]:
    """Copies of the layers up to the `count`-th hidden one with parameters and what follows it before the next."""
    return [_copy(layer) for layer in network.layers[: _starts(network)[count]]]


def kept(network: Network, count: int) -> slice:
    """Where the parameters of the first `count` hidden layers lie, in the network and in every one it grows from."""
    return slice(0, network.slices[_starts(network)[count]].start)


def grown(network: Network, count: int) -> Network:
    """The first `count` hidden layers under an output layer; with all of them, a copy of the network."""
    layers = [*hidden_layers(network, count), _copy(network.layers[_starts(network)[-1]])]
    return Network(
        layers, network.input_shape, copy.deepcopy(network.loss), l2=network.l2, workspace=network.workspace.another()
    )


def _copy(layer: Layer) -> Layer:
    """A copy but for the workspace, which a network that takes the layer up replaces."""
    return copy.deepcopy(layer, {id(layer.workspace): layer.workspace})


def _starts(network: Network) -> list[int]:
    """The places of the layers with parameters; the last is the output layer."""
    return [place for place, layer in enumerate(network.layers) if layer.parameters]
