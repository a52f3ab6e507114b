"""The interface of models to the rest of the program: a flat vector of parameters, and functions of it.

A model is anything that maps a minibatch to outputs and can differentiate their loss: a Network of our own layers, or a
module of another library whose parameters and gradients are views of flat vectors. Whoever needs more than the protocol
asks `network.network_of_layers`.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol, SupportsFloat

import numpy as np
from numpy.typing import DTypeLike

from mpitrain.flat import Array, Layout
from mpitrain.sampling.batch import Batch, SampleForm
from mpitrain.sampling.rng import stream

#: Called with a slice of the flat vector whose gradient is final.
Ready = Callable[[slice], None]


class Draws(NamedTuple):
    """What dropout draws from. If ranks share a minibatch, `share` is (place of the first of these examples, size of
    the whole minibatch): with equal streams, each rank drops the same units as a single rank would."""

    rng: np.random.Generator
    share: tuple[int, int] | None = None


class Consumer:
    """An `on_ready` that takes gradients from any memory: `use` gets a slice and its gradient. If that is not in the
    flat vector, the vector's slice is undefined. This saves copying large gradients of other libraries."""

    def __init__(self, gradients: Array, use: Callable[[slice, Array], None]) -> None:
        self._gradients, self.use = gradients, use

    def __call__(self, part: slice) -> None:
        """Use the gradient of a slice that is in the flat vector."""
        self.use(part, self._gradients[part])


class Model(Protocol):
    """`layout` places the parameters in the flat vector; `input_shape` is that of one example, `classes` the number of
    its outputs; `name` is what messages call it, such as "model.preset = 'digits-cnn'". Vectors and minibatches lie on
    the model's device and have one dtype."""

    layout: Layout
    input_shape: tuple[int, ...]
    classes: int
    name: str
    #: The function that turns outputs into posteriors.
    output: Literal["softmax", "logistic"]
    #: Texts that a run folder keeps beside the configuration, by file name.
    documents: Mapping[str, str] = MappingProxyType({})
    #: The name of the figure of merit, of which less is better: "error", "loss", or that of a metric of one's own.
    merit: str = "error"
    #: Whether the loss is a user's function, of any unit.
    own_loss: bool = False
    #: Of one sample's outputs; 0 for a model that is not made of this program's layers.
    multiply_adds: int = 0
    #: Whether it has buffers: constants, which are parameters of no algorithm, or statistics of normalisation, which
    #: belong to the parameters that they were measured for. Only such a model is asked to `measure` or `restore`.
    holds_buffers: bool = False
    #: Whether it has statistics.
    measures: bool = False
    #: Whether a gradient may draw from its `draws`.
    drawing: bool = True

    def initial(self, seed: int, dtype: DTypeLike = np.float32) -> Array:
        """The initial flat vector, in host memory. It depends on nothing but `seed` and the model."""

    def loss_and_gradient(
        self, parameters: Array, out: Array, batch: Batch, draws: Draws | None = None, on_ready: Ready | None = None
    ) -> SupportsFloat:
        """The minibatch's mean loss, on a GPU as an array of one element; its gradient overwrites `out`.

        Without `draws`, a model with dropout cannot be trained, or draws from whatever it drew from last. `on_ready` is
        called with slices that together cover the flat vector exactly once, each when its gradient is final; the callee
        may then change these gradients. A Consumer may be handed them wherever they are instead. `parameters` and
        `batch` are not changed.
        """

    def evaluate(self, parameters: Array, batch: Batch) -> tuple[float, float]:
        """The summed loss, without dropout, and the figure of merit summed over the examples: of "error", the number of
        those whose largest output is not the target's. Of equal outputs the first counts as the largest.
        """

    def outputs(self, parameters: Array, inputs: Array) -> Array:
        """The outputs [n, classes] before `output`, without dropout, valid until the next call of the model."""

    def measured(self, parameters: Array) -> bool:
        """Whether the statistics, if it has any, belong to these parameters."""
        return True

    def measure(self, parameters: Array, inputs: Array, number: int, count: int) -> None:
        """Take the minibatch `number` of `count` into the statistics. The first one resets them; after the last, they
        belong to these parameters."""
        raise RuntimeError(f"{self.name}: has no buffers")

    def kept(self, parameters: Array) -> dict[str, Array]:
        """Constants by name, and the statistics if they belong to these parameters."""
        return {}

    def remembers(self) -> bool:
        """Whether its outputs are seen to depend on more than the parameters and what `kept` gives."""
        return False

    def restore(self, kept: Mapping[str, Array], parameters: Array) -> None:
        """Take back what `kept` has given for these parameters. Raises BadInput naming what does not fit."""
        raise RuntimeError(f"{self.name}: has no buffers")


class PhantomModel(Model):
    """Computes no gradient, but reports the same parts as final, in the same order, as the model `of`, whose gradient
    of one sample of `form` shows them. The loss is 0."""

    drawing = False

    def __init__(self, of: Model, form: SampleForm, dtype: DTypeLike) -> None:
        self.layout, self.input_shape, self.classes, self.name = of.layout, of.input_shape, of.classes, of.name
        self.output = of.output
        self._parts: list[slice] = []
        parameters = np.zeros(self.layout.size, dtype)
        batch = form.room(1, dtype, np.zeros)
        of.loss_and_gradient(
            parameters, np.empty_like(parameters), batch, Draws(stream(0, "dropout")), self._parts.append
        )

    def loss_and_gradient(
        self, parameters: Array, out: Array, batch: Batch, draws: Draws | None = None, on_ready: Ready | None = None
    ) -> float:
        """Report the parts as final one after another; returns 0."""
        if on_ready is not None:
            for part in self._parts:
                on_ready(part)
        return 0.0

    def initial(self, *given: Any, **how: Any) -> Any:
        """Not available: a phantom's vectors have no values."""
        raise NotImplementedError

    evaluate = outputs = initial
