"""The layers before the fully connected ones, which every rank holds completely and runs on its own examples."""

from collections.abc import Callable
from math import prod

import numpy as np

from mpitrain.flat import Array
from mpitrain.models.dropout import Dropout
from mpitrain.models.layer import Views
from mpitrain.models.network import Network


class SharedPart:
    """Forward and backward pass of the network's first layers. Their output has `activations` numbers per example.

    `parts` are the slices of the flat vector of layers with parameters; `names[part.start]` names these parameters.
    """

    def __init__(self, network: Network) -> None:
        self.layers = network.layers[: network.split]
        self.slices = network.slices[: network.split]
        self.parts = [part for part in self.slices if part.stop > part.start]
        self.names = {
            part.start: [p.name for p in layer.parameters]
            for layer, part in zip(self.layers, self.slices, strict=True)
            if layer.parameters
        }
        self.activations = prod(self.layers[-1].output_shape)
        self._input_shape = network.input_shape
        self._first = next(i for i, layer in enumerate(self.layers) if layer.parameters)

    def forward(self, views: Views, inputs: Array, rng: np.random.Generator, share: tuple[int, int]) -> Array:
        """The output [n, activations] for inputs [n, *input_shape]; valid until the next forward pass.

        `rng` and `share` are for dropout, as in Network.loss_and_gradient.
        """
        x = inputs.reshape(len(inputs), *self._input_shape)
        for layer in self.layers:
            if isinstance(layer, Dropout):
                layer.share = share
            x = layer.forward(views, x, True, rng)
        return x.reshape(len(x), self.activations)

    def backward(self, views: Views, gradients: Views, dy: Array, on_ready: Callable[[slice], None]) -> None:
        """Write the gradients for dy [n, activations], which is overwritten; `on_ready` as in
        Network.loss_and_gradient."""
        out: Array | None = dy.reshape(len(dy), *self.layers[-1].output_shape)
        for i in range(len(self.layers) - 1, self._first - 1, -1):
            layer = self.layers[i]
            out = layer.backward(views, gradients, out, need_dx=i > self._first)
            if layer.parameters:
                on_ready(self.slices[i])
