"""What every layer is."""

from abc import ABC, abstractmethod

import numpy as np

from mpitrain.flat import Array, Parameter
from mpitrain.models.workspace import Workspace

Views = dict[str, Array]
Shape = tuple[int, ...]


class Layer(ABC):
    """One step of a network, made in two: the constructor says what it is, `connect` what it stands on.

    Shapes are of one example, without the minibatch dimension. A layer remembers its last forward pass for the backward
    pass that follows. Its output lies in the workspace (or in its input, for those that work in place) until the next
    forward pass, and `backward` may overwrite dy.
    """

    kind = "layer"  #: first part of the layer's name

    def __init__(self) -> None:
        self.parameters: list[Parameter] = []
        self.name = self.kind
        self.input_shape: Shape = ()
        self.output_shape: Shape = ()
        self.workspace: Workspace
        #: Whether the layer after this one adds this one's bias, by way of `Workspace.bias`.
        self.leaves_bias = False

    def connect(self, input_shape: Shape, name: str = "", workspace: Workspace | None = None) -> Shape:
        """Fix input shape, name and workspace.

        Returns the output shape. Raises BadInput when the input is too small.
        """
        self.name = name or self.kind
        self.workspace = workspace or Workspace()
        self.input_shape = tuple(input_shape)
        self.leaves_bias = False
        self.output_shape = self.prepare(self.input_shape)
        return self.output_shape

    @property
    def takes_bias(self) -> bool:
        """Whether the layer before may leave its bias to this one."""
        return False

    def prepare(self, input_shape: Shape) -> Shape:
        """Set `parameters`; returns the output shape."""
        return input_shape

    @abstractmethod
    def forward(self, views: Views, x: Array, training: bool = False, rng: np.random.Generator | None = None) -> Array:
        """The output [n, *output_shape] for x [n, *input_shape], with the parameters in `views`."""

    @abstractmethod
    def backward(self, views: Views, gradients: Views, dy: Array, need_dx: bool = True) -> Array | None:
        """Write the parameters' gradients over `gradients`; returns dx (None unless `need_dx`)."""

    def buffer(self, part: str, shape: Shape, like: Array) -> Array:
        """The layer's own workspace array, of the dtype of `like`."""
        return self.workspace.array(f"{self.name}.{part}", shape, like.dtype)
