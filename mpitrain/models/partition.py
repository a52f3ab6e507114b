"""A network of convolutional and then fully connected layers, divided over ranks (Krizhevsky 2014, §4).

Every part holds all layers before the first fully connected one, and a share of the units of each fully connected
layer: columns of its weights [inputs, units] and the corresponding biases.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

import numpy as np

from mpitrain.errors import BadInput
from mpitrain.flat import Array, Layout, Parameter, share
from mpitrain.models.layer import Activation, Views
from mpitrain.models.layers.convolution import Convolution
from mpitrain.models.layers.dropout import Dropout
from mpitrain.models.layers.fully_connected import FullyConnected
from mpitrain.models.network import Network


class FullyConnectedStage(NamedTuple):
    """A fully connected layer with the elementwise layers that follow it: activations, then optionally dropout."""

    layer: FullyConnected
    activations: tuple[Activation, ...]
    dropout: Dropout | None

    @property
    def inputs(self) -> int:
        """Number of inputs of the layer."""
        return prod(self.layer.input_shape)


def stages(network: Network, parts: int) -> list[FullyConnectedStage]:
    """The fully connected layers of a network, to be divided into `parts`. Raises BadInput saying why not."""
    before, after = network.layers[: network.split], network.layers[network.split :]
    if not any(isinstance(layer, Convolution) for layer in before):
        raise BadInput(
            f"{network.name}: hybrid needs convolutional layers before the fully connected ones; there are none"
        )
    found: list[FullyConnectedStage] = []
    for layer in after:
        if isinstance(layer, FullyConnected):
            if layer.units < parts:
                raise BadInput(
                    f"{network.name}: {layer.name} has {layer.units} units, too few for {parts} ranks of hybrid"
                )
            if layer.columns > 1 and layer.columns % parts:
                raise BadInput(
                    f"{network.name}: {layer.name} has {layer.columns} columns, which {parts} ranks of hybrid cannot "
                    "share evenly"
                )
            found.append(FullyConnectedStage(layer, (), None))
        elif isinstance(layer, Activation) and found[-1].dropout is None:
            found[-1] = found[-1]._replace(activations=(*found[-1].activations, layer))
        elif isinstance(layer, Dropout) and found[-1].dropout is None:
            found[-1] = found[-1]._replace(dropout=layer if layer.rate else None)
        else:
            raise BadInput(f"{network.name}: hybrid cannot divide {layer.name}, which follows {found[-1].layer.name}")
    if found[-1].activations or found[-1].dropout:
        raise BadInput(f"{network.name}: hybrid wants {found[-1].layer.name} to be the last layer")
    return found


@dataclass(frozen=True)
class Partition:
    """Part `part` of `parts` of a network. `layout` is that of the part's own flat vector, which begins with `shared`
    elements that all parts hold, at the same place as in the whole vector. With one part it is the network itself."""

    network: Network
    part: int
    parts: int

    @property
    def stages(self) -> list[FullyConnectedStage]:
        """The fully connected layers. Raises BadInput."""
        return stages(self.network, self.parts)

    @property
    def shared(self) -> int:
        """Number of parameters before the fully connected layers."""
        return self.network.slices[self.network.split].start

    @property
    def layout(self) -> Layout:
        """The part's own parameters, in the order of the whole."""
        whole = self.network.layout
        return Layout([p if whole.slices[p.name].start < self.shared else self._share(p) for p in whole.parameters])

    def take(self, whole: Array) -> Array:
        """Extract the part's own vector from the whole one."""
        return np.concatenate([whole[: self.shared], *(piece.ravel() for piece in self._pieces(whole))])

    def put(self, own: Array, whole: Array) -> None:
        """Copy the elements that only this part holds, its own vector from `shared` on, into the whole vector."""
        start = 0
        for piece in self._pieces(whole):
            np.copyto(piece, own[start : start + piece.size].reshape(piece.shape))
            start += piece.size

    def _share(self, parameter: Parameter) -> Parameter:
        mine = share(parameter.shape[-1], self.part, self.parts)
        return replace(parameter, shape=(*parameter.shape[:-1], mine.stop - mine.start))

    def _pieces(self, whole: Array) -> Iterator[Array]:
        """What the part holds of each fully connected parameter, as views of the whole vector."""
        views = self.network.layout.views(whole)
        for parameter in (p for stage in self.stages for p in stage.layer.parameters):
            yield views[parameter.name][..., share(parameter.shape[-1], self.part, self.parts)]


class SharedPart:
    """The layers before the fully connected ones, which every rank holds completely and runs on its own examples. Their
    output has `activations` numbers per example.

    `parts` are the slices of the flat vector of layers with parameters; `names[part.start]` names these parameters.
    """

    def __init__(self, network: Network) -> None:
        self._network, self._layers = network, network.layers[: network.split]
        parts = zip(self._layers, network.slices, strict=False)
        shared = [(layer, part) for layer, part in parts if layer.parameters]
        self.parts = [part for _, part in shared]
        self.names = {part.start: [p.name for p in layer.parameters] for layer, part in shared}
        self.activations = prod(self._layers[-1].output_shape)

    def forward(self, views: Views, inputs: Array, rng: np.random.Generator, share: tuple[int, int]) -> Array:
        """The output [n, activations] for inputs [n, *input_shape]; valid until the next forward pass.

        `rng` and `share` are for dropout, as in Network.loss_and_gradient.
        """
        x = self._network.forward(views, inputs, self._layers, training=True, rng=rng, share=share)
        return x.reshape(len(x), self.activations)

    def backward(self, views: Views, gradients: Views, dy: Array, on_ready: Callable[[slice], None]) -> None:
        """Write the gradients for dy [n, activations], which is overwritten; `on_ready` as in
        Network.loss_and_gradient."""
        out = dy.reshape(len(dy), *self._layers[-1].output_shape)
        slices = self._network.slices
        self._network.backward(views, gradients, out, self._layers, lambda number: on_ready(slices[number]))
