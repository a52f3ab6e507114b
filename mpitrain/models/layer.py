"""The interface of layers."""

from abc import ABC, abstractmethod

import numpy as np

from mpitrain.errors import BadInput
from mpitrain.flat import Array, Parameter
from mpitrain.models.workspace import Workspace

Views = dict[str, Array]
Shape = tuple[int, ...]


class DoesNotFit(BadInput):
    """A layer that its input is too small or of the wrong kind for: `key` of its table is at fault, `why` says how, and
    `place` counts the layers before it."""

    def __init__(self, layer: str, key: str, why: str) -> None:
        super().__init__(f"{layer}: {why}")
        self.key, self.why, self.place = key, why, 0


class Layer(ABC):
    """One step of a network. The constructor takes its own sizes, `connect` the shape of its input.

    Shapes are those of one example, without the minibatch dimension. A layer keeps its last forward pass for the
    backward pass that follows. Its output stays in the workspace (or in its input, for layers that work in place) until
    the next forward pass; `backward` may overwrite dy.
    """

    kind = "layer"  #: first part of the layer's name

    def __init__(self) -> None:
        self.parameters: list[Parameter] = []
        self.name = self.kind
        self.input_shape: Shape = ()
        self.output_shape: Shape = ()
        self.workspace: Workspace
        #: Whether the next layer adds this layer's bias, through `Workspace.bias`.
        self.leaves_bias = False

    def connect(self, input_shape: Shape, name: str = "", workspace: Workspace | None = None) -> Shape:
        """Set input shape, name and workspace.

        Returns the output shape. Raises DoesNotFit if the input is too small.
        """
        self.name = name or self.kind
        self.workspace = workspace or Workspace()
        self.input_shape = tuple(input_shape)
        self.leaves_bias = False
        self.output_shape = self.prepare(self.input_shape)
        return self.output_shape

    @property
    def operations(self) -> int:
        """Multiply-adds of its matrix products, for the output of one example."""
        return 0

    @property
    def takes_bias(self) -> bool:
        """Whether this layer can add the bias of the previous one."""
        return False

    def prepare(self, input_shape: Shape) -> Shape:
        """Set `parameters`; return the output shape."""
        return input_shape

    @abstractmethod
    def forward(self, views: Views, x: Array, training: bool = False, rng: np.random.Generator | None = None) -> Array:
        """The output [n, *output_shape] for x [n, *input_shape], with the parameters in `views`."""

    @abstractmethod
    def backward(self, views: Views, gradients: Views, dy: Array, need_dx: bool = True) -> Array | None:
        """Overwrite `gradients` with those of the parameters; return dx (None unless `need_dx`)."""

    def require_image(self, input_shape: Shape) -> None:
        """Raise DoesNotFit unless the input is [h, w, c]."""
        if len(input_shape) != 3:
            raise DoesNotFit(self.name, "kind", f"wants images, not {' x '.join(map(str, input_shape))} numbers")

    def buffer(self, part: str, shape: Shape, like: Array) -> Array:
        """The layer's own workspace array, of the dtype of `like`."""
        return self.workspace.array(f"{self.name}.{part}", shape, like.dtype)
