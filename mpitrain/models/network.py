"""A network: a sequence of layers with their parameters in one flat vector."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import ClassVar, Literal, SupportsFloat, cast

import numpy as np
from numpy.typing import DTypeLike

from mpitrain.batch import Batch
from mpitrain.flat import Array, Layout
from mpitrain.models.dropout import Dropout
from mpitrain.models.fully_connected import FullyConnected
from mpitrain.models.layer import DoesNotFit, Layer, Shape, Views
from mpitrain.models.losses import Loss
from mpitrain.models.model import Capability, Model, Ready, require
from mpitrain.models.workspace import Workspace
from mpitrain.rng import stream


class Network:
    """`layers` from `input_shape` to `classes` outputs with `loss`, and `l2`/2·‖w‖² over the weights, with
    `l2_biases` over all parameters.

    `slices[i]` is layer i's part of the flat vector (empty for a layer without parameters); `split` is the number of
    layers before the first fully connected one. Raises DoesNotFit if `input_shape` is too small for the layers.
    """

    capabilities: ClassVar[frozenset[Capability]] = frozenset(("split", "layers"))
    documents: Mapping[str, str] = MappingProxyType({})

    def __init__(
        self,
        layers: Sequence[Layer],
        input_shape: Shape,
        loss: Loss,
        *,
        l2: float = 0.0,
        l2_biases: bool = False,
        workspace: Workspace | None = None,
        name: str = "model",
    ) -> None:
        self.name = name
        self.layers = list(layers)
        self.input_shape = tuple(input_shape)
        self.loss = loss
        self.l2, self.l2_biases = l2, l2_biases
        self.workspace = workspace or Workspace()
        self._connect()
        self.layout = Layout([p for layer in self.layers for p in layer.parameters])
        self.slices = self._layer_slices()
        self.classes = self.layers[-1].output_shape[0]
        self.split = next(i for i, layer in enumerate(self.layers) if isinstance(layer, FullyConnected))
        self._first = next(i for i, layer in enumerate(self.layers) if layer.parameters)
        self._dropouts = [layer for layer in self.layers if isinstance(layer, Dropout)]
        self._views: dict[str, tuple[Array, Views]] = {}

    def loss_and_gradient(
        self,
        parameters: Array,
        gradients: Array,
        batch: Batch,
        rng: np.random.Generator | None = None,
        on_ready: Ready | None = None,
        *,
        share: tuple[int, int] | None = None,
    ) -> SupportsFloat:
        """Mean loss of the minibatch, without the l2 term (an array on a GPU).

        The mean gradient, with the l2 term, overwrites `gradients`.

        `rng` draws dropout. If ranks share a minibatch, `share` is (index of the first of these examples, size of the
        whole minibatch): with equal random streams, each rank drops the same units as a single rank would. `on_ready`
        is called with each layer's slice of the flat vector, last layers first, when its gradient is final. All arrays
        have one dtype; `batch.inputs` is [n, *input_shape].
        """
        views = self._views_of("parameters", parameters)
        gradient_views = self._views_of("gradients", gradients)
        for dropout in self._dropouts:
            dropout.share = share
        outputs = self._forward(views, batch.inputs, True, rng)
        dy: Array | None = outputs
        loss = self.loss.loss_and_gradient(outputs, batch.targets, self.workspace)
        for i in range(len(self.layers) - 1, self._first - 1, -1):
            layer = self.layers[i]
            dy = layer.backward(views, gradient_views, dy, need_dx=i > self._first)
            if layer.parameters:
                self._add_decay(layer, views, gradient_views)
                if on_ready is not None:
                    on_ready(self.slices[i])
        return loss / len(batch.targets)

    @property
    def output(self) -> Literal["softmax", "logistic"]:
        """The function that turns outputs into posteriors."""
        return self.loss.name

    def evaluate(self, parameters: Array, batch: Batch) -> tuple[float, int]:
        """Summed loss, without dropout and l2, and the number of examples whose largest output is not the target's.

        Of equal outputs the first counts as the largest.
        """
        outputs = self.outputs(parameters, batch.inputs)
        errors = int((outputs.argmax(axis=1) != batch.targets).sum())
        return float(self.loss.loss(outputs, batch.targets, self.workspace)), errors

    def outputs(self, parameters: Array, inputs: Array) -> Array:
        """The outputs z [n, classes] before softmax or logistic function, without dropout, in a buffer of the
        network."""
        return self._forward(self._views_of("parameters", parameters), inputs, False, None)

    def initial(self, seed: int, dtype: DTypeLike = np.float32) -> Array:
        """The initial flat vector, on the host. It depends on `seed` and the layers; drawn in float64 and rounded."""
        vector = np.empty(self.layout.size, dtype)
        for i, parameter in enumerate(self.layout.parameters):
            kind, value = parameter.initial
            part = vector[self.layout.slices[parameter.name]]
            if kind == "gaussian":
                part[:] = stream(seed, "initial", i).standard_normal(parameter.size) * value
            else:
                part[:] = value
        return vector

    def _connect(self) -> None:
        shape, numbers = self.input_shape, dict[str, int]()
        for place, layer in enumerate(self.layers):
            numbers[layer.kind] = numbers.get(layer.kind, 0) + 1
            try:
                shape = layer.connect(shape, f"{layer.kind}{numbers[layer.kind]}", self.workspace)
            except DoesNotFit as error:
                error.place = place
                raise
        for layer, following in pairwise(self.layers):
            layer.leaves_bias = bool(layer.parameters) and following.takes_bias

    def _layer_slices(self) -> list[slice]:
        slices, start = [], 0
        for layer in self.layers:
            size = sum(p.size for p in layer.parameters)
            slices.append(slice(start, start + size))
            start += size
        return slices

    def _forward(self, views: Views, x: Array, training: bool, rng: np.random.Generator | None) -> Array:
        x = x.reshape(len(x), *self.input_shape)
        for layer in self.layers:
            x = layer.forward(views, x, training, rng)
        return x

    def _views_of(self, role: str, vector: Array) -> Views:
        """Views of `vector`, which are cached for each role until it gets another vector."""
        known = self._views.get(role)
        if known is None or known[0] is not vector:
            known = self._views[role] = (vector, self.layout.views(vector))
        return known[1]

    def _add_decay(self, layer: Layer, views: Views, gradient_views: Views) -> None:
        if self.l2:
            for p in layer.parameters:
                if p.decay or self.l2_biases:
                    self.workspace.ops.add_scaled(gradient_views[p.name], views[p.name], self.l2)


def network_of_layers(model: Model, capability: Literal["split", "layers"], who: str) -> Network:
    """The model as a network of layers, which every model with one of these capabilities is. Raises BadInput naming the
    model and the reason if it lacks what `who` needs of it."""
    require(model, capability, who)
    return cast(Network, model)
