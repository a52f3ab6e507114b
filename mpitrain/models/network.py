"""A network: a sequence of layers with their parameters in one flat vector, made of a design or of a preset."""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal, SupportsFloat

import numpy as np
from numpy.typing import DTypeLike

from mpitrain.errors import BadInput
from mpitrain.flat import Array, Layout, pieces_of
from mpitrain.models.design import KEY, Design, complete
from mpitrain.models.layer import Activation, DoesNotFit, Layer, Shape, Views, Weighted
from mpitrain.models.layers.dropout import Dropout
from mpitrain.models.layers.fully_connected import FullyConnected
from mpitrain.models.losses import LOSSES, Loss
from mpitrain.models.model import Draws, Model, Ready
from mpitrain.models.presets import PRESETS, design
from mpitrain.models.workspace import Workspace, add_scaled
from mpitrain.sampling.batch import Batch, SampleForm
from mpitrain.sampling.rng import stream


class Network(Model):
    """`layers` from `input_shape` to `classes` outputs with `loss`, and `l2`/2·‖w‖² over the weights, with
    `l2_biases` over all parameters.

    `slices[i]` is layer i's part of the flat vector (empty for a layer without parameters); `split` is the number of
    layers before the first fully connected one. Raises DoesNotFit if `input_shape` is too small for the layers.
    """

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
        self.loss, self.output = loss, loss.name
        self.l2, self.l2_biases = l2, l2_biases
        self.workspace = workspace or Workspace()
        self._connect()
        self.layout = Layout([p for layer in self.layers for p in layer.parameters])
        self.slices = pieces_of([sum(p.size for p in layer.parameters) for layer in self.layers])
        self.classes = self.layers[-1].output_shape[0]
        self.multiply_adds = sum(layer.operations for layer in self.layers)
        self.drawing = any(isinstance(layer, Dropout) and layer.rate for layer in self.layers)
        self.split = next(i for i, layer in enumerate(self.layers) if isinstance(layer, FullyConnected))
        self._first = next(i for i, layer in enumerate(self.layers) if layer.parameters)
        self._views: dict[str, tuple[Array, Views]] = {}

    def loss_and_gradient(
        self, parameters: Array, out: Array, batch: Batch, draws: Draws | None = None, on_ready: Ready | None = None
    ) -> SupportsFloat:
        """Mean loss of the minibatch, without the l2 term (an array on a GPU).

        The mean gradient, with the l2 term, overwrites `out`.

        `on_ready` is called with each layer's slice of the flat vector, last layers first, when its gradient is final.
        All arrays have one dtype; `batch.inputs` is [n, *input_shape].
        """
        views = self._views_of("parameters", parameters)
        gradient_views = self._views_of("gradients", out)
        outputs = self.forward(views, batch.inputs, self.layers, training=True, draws=draws)
        loss = self.loss.loss_and_gradient(outputs, batch.targets, self.workspace)

        def final(number: int) -> None:
            for p in self.layers[number].parameters if self.l2 else ():
                if p.decay or self.l2_biases:
                    self.workspace.kernel(add_scaled)(gradient_views[p.name], views[p.name], self.l2)
            if on_ready is not None:
                on_ready(self.slices[number])

        self.backward(views, gradient_views, outputs, self.layers, final)
        return loss / len(batch.targets)

    def forward(
        self,
        views: Views,
        inputs: Array,
        layers: Sequence[Layer],
        *,
        training: bool = False,
        draws: Draws | None = None,
    ) -> Array:
        """The output of the first layers, `layers`, for inputs [n, *input_shape]; valid until the next forward pass."""
        x = inputs.reshape(len(inputs), *self.input_shape)
        for layer in layers:
            x = layer.forward(views, x, training, draws)
        return x

    def backward(
        self, views: Views, gradients: Views, dy: Array | None, layers: Sequence[Layer], final: Callable[[int], None]
    ) -> None:
        """Write the gradients of the first layers, `layers`, for that of their output, which is overwritten; `final`
        gets the number of each layer with parameters when its gradient is."""
        for number in range(len(layers) - 1, self._first - 1, -1):
            dy = layers[number].backward(views, gradients, dy, need_dx=number > self._first)
            if layers[number].parameters:
                final(number)

    def evaluate(self, parameters: Array, batch: Batch) -> tuple[float, int]:
        """Summed loss, without dropout and l2, and the number of examples whose largest output is not the target's.

        Of equal outputs the first counts as the largest.
        """
        outputs = self.outputs(parameters, batch.inputs)
        errors = int((outputs.argmax(axis=1) != batch.targets).sum())
        return float(self.loss.loss(outputs, batch.targets, self.workspace)), errors

    def outputs(self, parameters: Array, inputs: Array) -> Array:
        """The outputs z [n, classes] before softmax or logistic function, without dropout, in the network's buffer."""
        return self.forward(self._views_of("parameters", parameters), inputs, self.layers)

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
        shape, numbers = self.input_shape, Counter[str]()
        for layer in self.layers:
            numbers[layer.kind] += 1
            shape = layer.connect(shape, f"{layer.kind}{numbers[layer.kind]}", self.workspace)
        for layer, following in pairwise(self.layers if self.workspace.fuses_bias else ()):
            if isinstance(layer, Weighted) and isinstance(following, Activation):
                layer.leaves_bias, following.bias = True, layer.parameters[1].name

    def _views_of(self, role: str, vector: Array) -> Views:
        """Views of `vector`, which are cached for each role until it gets another vector."""
        known = self._views.get(role)
        if known is None or known[0] is not vector:
            known = self._views[role] = (vector, self.layout.views(vector))
        return known[1]


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
    layers = [layer.make() for layer in complete(made.layers, classes, made.output)]
    shape = tuple(input_shape)
    if len(shape) == 2 and next(layer for layer in layers if not isinstance(layer, Dropout)).images:
        shape = (*shape, 1)
    try:
        loss = LOSSES[made.output]
        return Network(layers, shape, loss, l2=made.l2, l2_biases=made.l2_biases, workspace=workspace, name=made.name)
    except DoesNotFit as error:
        raise BadInput(_misfit(made, tuple(input_shape), layers.index(error.layer), error)) from None


def _misfit(made: Design, shape: Shape, place: int, error: DoesNotFit) -> str:
    """A message that names the key at fault, and for windows of frames the presets that are made for them."""
    if made.preset is None:
        value = getattr(made.layers[place], error.key)
        return f"{KEY}[{place}].{error.key} = {value!r}: {error.why}"
    kind = {2: "windows of frames", 3: "images"}.get(len(shape), "inputs")
    fitting = [name for name, known in PRESETS.items() if known.frames]
    better = f"; for frames: {', '.join(fitting)}" if len(shape) == 2 and made.preset not in fitting else ""
    return f"model.preset: {made.preset} does not fit {kind} of {' x '.join(map(str, shape))}: {error}{better}"


def warm(model: Model, dtype: DTypeLike, to_device: Callable[[Array], Array] = lambda array: array) -> None:
    """Take a step on one example of zeros, so that every compiled loop of a network is in the cache on disk. A module
    of PyTorch's has none.

    `to_device` copies arrays to the network's device. Compiling takes seconds, loading from the cache tens of
    milliseconds: one rank of each node calls this before the others.
    """
    if isinstance(model, Network):
        parameters = to_device(np.zeros(model.layout.size, dtype))
        batch = Batch(*map(to_device, SampleForm(model.input_shape).room(1, dtype, np.zeros)))
        model.loss_and_gradient(parameters, np.empty_like(parameters), batch, Draws(stream(0, "dropout")))


#: What a model that is no network of layers lacks.
LACKS = {
    "split": "fully connected layers that can be divided over ranks",
    "layers": "layers of this program's own, which can be taken apart",
}


def network_of_layers(model: Model, what: Literal["split", "layers"], who: str) -> Network:
    """The model as a network of layers. Raises BadInput naming the model if it is none, and what of it `who` needs."""
    if not isinstance(model, Network):
        raise BadInput(f"{model.name}: {who} needs {LACKS[what]}; this model has none")
    return model
