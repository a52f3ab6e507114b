"""The interface of layers: what a configuration lists, and the step of a network that is made of it.

A layer is a file in mpitrain/models/layers: its options, forward and backward with the loops that they run, and its
counterparts in PyTorch and ONNX. A function that a layer calls through `Workspace.kernel` runs as the device's kernel
of the same name, where it has one.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from math import prod, sqrt
from types import ModuleType
from typing import Annotated, Any, ClassVar, NamedTuple

import msgspec

from mpitrain.errors import BadInput
from mpitrain.flat import Array, Parameter
from mpitrain.models.model import Draws as Draws
from mpitrain.models.workspace import Workspace, add_bias

Views = dict[str, Array]
Shape = tuple[int, ...]
Tensor = Any  #: a torch.Tensor; PyTorch need not be installed

Pixels = Annotated[int, msgspec.Meta(ge=1, le=10_000)]
Finite = Annotated[float, msgspec.Meta(ge=-1e30, le=1e30)]


def with_gradient(x: Tensor) -> Tensor:
    """x, on a CPU with a gradient even where none is wanted: without, the backward pass of PyTorch's group
    normalisation (2.13) writes into no memory for channels-last images of fewer than 2,048 pixels, and crashes."""
    return x if x.requires_grad or not x.is_cpu else x.detach().requires_grad_()


class DoesNotFit(BadInput):
    """The input of a layer is too small or of the wrong kind for it: `key` of the layer's table is at fault, and `why`
    says how."""

    def __init__(self, layer: "Layer", key: str, why: str) -> None:
        super().__init__(f"{layer.name}: {why}")
        self.layer, self.key, self.why = layer, key, why


class LayerOptions(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A layer of a list, a table `[[model.layers]]`; the tag is its `kind`."""

    layer: ClassVar[type["Layer"]]

    @property
    def kind(self) -> str:
        """What the list calls it."""
        return str(self.__struct_config__.tag)

    def make(self) -> "Layer":
        """The layer with these options."""
        return self.layer(self)


class OnnxNode(NamedTuple):
    """x ← operator(x, constants...), with the constants by name."""

    operator: str
    constants: Mapping[str, Array] = {}
    attributes: Mapping[str, int | float | list[int]] = {}


class Layer(ABC):
    """One step of a network; the class names that of its `options`. The constructor takes these, `connect` the shape of
    its input.

    Shapes are those of one example, without the minibatch dimension. A layer keeps its last forward pass for the
    backward pass that follows. Its output stays in the workspace (or in its input, for layers that work in place) until
    the next forward pass; `backward` may overwrite dy.
    """

    kind: ClassVar[str]  #: first part of the layer's name
    #: Whether its inputs are images, [h, w, c].
    images: ClassVar[bool] = False
    #: Whether ONNX has its channels first or last; None if it does not matter.
    onnx_channels_first: ClassVar[bool | None] = None
    #: Multiply-adds of its matrix products, for the output of one example.
    operations = 0

    def __init_subclass__(cls, options: type[LayerOptions] | None = None) -> None:
        if options is not None:
            options.layer = cls

    def __init__(self, options: Any) -> None:
        self.options = options
        self.parameters: list[Parameter] = []
        self.name = self.kind
        self.input_shape: Shape = ()
        self.output_shape: Shape = ()
        self.workspace: Workspace

    def connect(self, input_shape: Shape, name: str = "", workspace: Workspace | None = None) -> Shape:
        """Set input shape, name and workspace.

        Returns the output shape. Raises DoesNotFit if the input is too small.
        """
        self.name = name or self.kind
        self.workspace = workspace or Workspace()
        self.input_shape = tuple(input_shape)
        if self.images and len(input_shape) != 3:
            raise DoesNotFit(self, "kind", f"wants images, not {' x '.join(map(str, input_shape))} numbers")
        self.output_shape = self.prepare(self.input_shape)
        return self.output_shape

    def prepare(self, input_shape: Shape) -> Shape:
        """Set `parameters`; return the output shape."""
        return input_shape

    @abstractmethod
    def forward(self, views: Views, x: Array, training: bool = False, draws: Draws | None = None) -> Array:
        """The output [n, *output_shape] for x [n, *input_shape], with the parameters in `views`."""

    @abstractmethod
    def backward(self, views: Views, gradients: Views, dy: Array, need_dx: bool = True) -> Array | None:
        """Overwrite `gradients` with those of the parameters; return dx (None unless `need_dx`)."""

    @abstractmethod
    def torch(self, torch: ModuleType, x: Tensor, own: Mapping[str, Tensor], training: bool) -> Tensor:
        """The output by PyTorch, with the parameters `own` by the last part of their names. Images are [n, c, h, w]."""

    def onnx(self, views: Views) -> list[OnnxNode]:
        """The output by ONNX, with the parameters in `views`. Raises BadInput if it has nothing for the layer."""
        raise BadInput(f"--format onnx: has nothing for the layer {self.name}")

    def buffer(self, part: str, shape: Shape, like: Array) -> Array:
        """The layer's own workspace array, of the dtype of `like`."""
        return self.workspace.array(f"{self.name}.{part}", shape, like.dtype)


class Weighted(Layer):
    """A layer of units that are weighted sums of inputs plus a bias; the last dimension of its output counts them.

    Initial weights are normal with the standard deviation `options.deviation`, by default √(`options.gain` / inputs of
    a unit), where a gain of 2 preserves the variance through a ReLU (He et al. 2015). `options.bias` is the initial
    bias.
    """

    #: Whether the activation that follows adds the bias.
    leaves_bias = False

    def set_parameters(self, shape: Shape, positions: int = 1) -> None:
        """Declare weights of this shape, [..., units], and biases. Units have an output at each of the positions."""
        deviation, bias = self.options.deviation, self.options.bias
        if deviation is None:
            deviation = sqrt(self.options.gain / prod(shape[:-1]))
        weights = Parameter(f"{self.name}.weights", shape, ("gaussian", deviation))
        biases = Parameter(f"{self.name}.bias", shape[-1:], ("constant", bias or 0.0), decay=False)
        self.parameters, self.leaves_bias = [weights, biases], False
        self.operations = positions * prod(shape)

    def add_bias(self, y: Array, bias: Array) -> None:
        """y ← y + bias, unless it is left to the activation."""
        if not self.leaves_bias:
            self.workspace.kernel(add_bias)(y, bias)


class Activation(Layer):
    """A function of each unit, computed in place on the output of the layer before it. It first adds that layer's bias
    if that is left to it. PyTorch and ONNX, which capitalises it, have the function by the name `kind`."""

    #: x, bias: x ← f(x + bias) in place; the bias may be None.
    function: Callable[[Array, Array | None], None]
    #: y, dy: dy ← the gradient for the input, by the output y.
    gradient: Callable[[Array, Array], None]
    #: The name of the bias that it adds.
    bias: str | None = None

    def prepare(self, input_shape: Shape) -> Shape:
        self.bias = None
        return input_shape

    def forward(self, views: Views, x: Array, training: bool = False, draws: Draws | None = None) -> Array:
        return self.apply(x, views[self.bias] if self.bias else None)

    def apply(self, x: Array, bias: Array | None = None) -> Array:
        """x ← f(x + bias), which is returned, too."""
        self.workspace.kernel(self.function)(x, bias)
        self._y = x
        return x

    def backward(self, views: Views, gradients: Views, dy: Array, need_dx: bool = True) -> Array | None:
        self.workspace.kernel(self.gradient)(self._y, dy)
        return dy

    def torch(self, torch: ModuleType, x: Tensor, own: Mapping[str, Tensor], training: bool) -> Tensor:
        return getattr(torch, self.kind)(x)

    def onnx(self, views: Views) -> list[OnnxNode]:
        return [OnnxNode(self.kind.capitalize())]
