"""The shallower networks of layer-wise pre-training: the first layers of a deep network, with or without an output
layer of their own."""

import copy

from mpitrain.models.layer import Layer
from mpitrain.models.network import Network


def depth(network: Network) -> int:
    """Number of hidden layers with parameters."""
    return len(_starts(network)) - 1


def hidden_layers(network: Network, count: int) -> list[Layer]:
    """Copies of the layers up to the `count`-th hidden one with parameters, and of those before the next one."""
    return [_copy(layer) for layer in network.layers[: _starts(network)[count]]]


def kept(network: Network, count: int) -> slice:
    """The slice of the parameters of the first `count` hidden layers, in the network and in all its shallower ones."""
    return slice(0, network.slices[_starts(network)[count]].start)


def grown(network: Network, count: int) -> Network:
    """The first `count` hidden layers with an output layer; for all of them, a copy of the network."""
    layers = [*hidden_layers(network, count), _copy(network.layers[_starts(network)[-1]])]
    return Network(
        layers, network.input_shape, copy.deepcopy(network.loss), l2=network.l2, workspace=network.workspace.another()
    )


def _copy(layer: Layer) -> Layer:
    """A copy without the workspace, which the network that uses the layer replaces."""
    return copy.deepcopy(layer, {id(layer.workspace): layer.workspace})


def _starts(network: Network) -> list[int]:
    """The indices of the layers with parameters; the last one is the output layer."""
    return [place for place, layer in enumerate(network.layers) if layer.parameters]
