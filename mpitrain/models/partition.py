"""A network of convolutional and then fully connected layers, divided over ranks (Krizhevsky 2014, §4).

Every part holds all layers before the first fully connected one, and a share of the units of each fully connected
layer: columns of its weights [inputs, units] and the corresponding biases. What it computes of such a layer without the
others is in unit-major arrays, [units, n], so that the units of a part are contiguous.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

import numpy as np

from mpitrain.errors import BadInput
from mpitrain.flat import Array, Layout, Parameter, blocks, share
from mpitrain.models.layer import Activation, Views
from mpitrain.models.layers.convolution import Convolution
from mpitrain.models.layers.dropout import Dropout
from mpitrain.models.layers.fully_connected import FullyConnected, column_blocks
from mpitrain.models.model import Draws
from mpitrain.models.network import Network
from mpitrain.models.workspace import Workspace, matmul

Product = Callable[[Array, Array, Array], Any]  #: of a, b, out

#: Multiplications per block of a matrix product: about 2 ms on one core, the interval at which messages progress.
BLOCK = 9e7
#: Fewest rows of a block that run at nearly full speed (benchmarks/hybrid/progress.py).
ROWS = 512


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
    name, found = network.name, list[FullyConnectedStage]()
    if not any(isinstance(layer, Convolution) for layer in network.layers[: network.split]):
        raise BadInput(f"{name}: hybrid needs convolutional layers before the fully connected ones; there are none")
    for layer in network.layers[network.split :]:
        if isinstance(layer, FullyConnected):
            if layer.units < parts:
                raise BadInput(f"{name}: {layer.name} has {layer.units} units, too few for {parts} ranks of hybrid")
            if layer.columns > 1 and layer.columns % parts:
                columns = f"{layer.columns} columns, which {parts} ranks of hybrid cannot share evenly"
                raise BadInput(f"{name}: {layer.name} has {columns}")
            found.append(FullyConnectedStage(layer, (), None))
        elif isinstance(layer, Activation) and found[-1].dropout is None:
            found[-1] = found[-1]._replace(activations=(*found[-1].activations, layer))
        elif isinstance(layer, Dropout) and found[-1].dropout is None:
            found[-1] = found[-1]._replace(dropout=layer if layer.rate else None)
        else:
            raise BadInput(f"{name}: hybrid cannot divide {layer.name}, which follows {found[-1].layer.name}")
    if found[-1].activations or found[-1].dropout:
        raise BadInput(f"{name}: hybrid wants {found[-1].layer.name} to be the last layer")
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

    def forward(self, views: Views, inputs: Array, draws: Draws) -> Array:
        """The output [n, activations] for inputs [n, *input_shape]; valid until the next forward pass."""
        x = self._network.forward(views, inputs, self._layers, training=True, draws=draws)
        return x.reshape(len(x), self.activations)

    def backward(self, views: Views, gradients: Views, dy: Array, on_ready: Callable[[slice], None]) -> None:
        """Write the gradients for dy [n, activations], which is overwritten; `on_ready` as in
        Network.loss_and_gradient."""
        out = dy.reshape(len(dy), *self._layers[-1].output_shape)
        slices = self._network.slices
        self._network.backward(views, gradients, out, self._layers, lambda number: on_ready(slices[number]))


class SplitStage:
    """The units `own` of a stage, whole columns of it where it has several. `forward` comes first, then the three
    backward functions in any order.

    `inputs` are the inputs that these units see; x and its gradient have only these.
    """

    def __init__(self, stage: FullyConnectedStage, own: slice, workspace: Workspace) -> None:
        self.stage, self.own, self.workspace = stage, own, workspace
        self.units, self.count = stage.layer.units, own.stop - own.start
        columns, parts = stage.layer.columns, self.units // self.count
        #: Whether these units see only the units of the same part before them.
        self.restricted = columns > 1
        self.inputs = slice(0, stage.inputs)
        if self.restricted:
            self.inputs = share(stage.inputs, own.start // self.count, parts)
            columns //= parts
        self._blocks = column_blocks(self.inputs.stop - self.inputs.start, self.count, columns)
        self.names = [parameter.name for parameter in stage.layer.parameters]

    def forward(self, views: Views, x: Array, out: Array, keep: Array | None, progress: Any) -> None:
        """out [own units, n] ← keep · activation(Wᵀx + b) for x [its inputs, n]; `keep` [own units, n] are dropout's
        factors."""
        weights, bias = (views[name] for name in self.names)
        self._x, self._keep = x, keep
        self._y = out if keep is None else self._array("y", out.shape, out.dtype)
        for inputs, units in self._blocks:
            product(weights[:, units].T, x[inputs], self._y[units], progress, self.workspace.kernel(matmul))
        np.add(self._y, bias[:, None], out=self._y)
        for layer in self.stage.activations:
            layer.apply(self._y)
        if keep is not None:
            np.multiply(self._y, keep, out=out)

    def backward_activation(self, views: Views, dy: Array) -> None:
        """Turn the gradient after activation and dropout into the one before, in place."""
        if self._keep is not None:
            np.multiply(dy, self._keep, out=dy)
        for layer in reversed(self.stage.activations):
            layer.backward(views, views, dy)

    def input_gradient(self, views: Views, dy: Array, out: Array, progress: Any) -> None:
        """out [its inputs, n] ← W·dy: this part's term of the gradient with respect to x, which is the sum over parts
        unless it is restricted."""
        for inputs, units in self._blocks:
            product(views[self.names[0]][:, units], dy[units], out[inputs], progress, self.workspace.kernel(matmul))

    def weight_gradient(self, gradients: Views, dy: Array, add: bool, progress: Any) -> None:
        """Write x·dyᵀ and Σ dy to the gradients of this part's weights and biases, or add them."""
        weights, bias = (gradients[name] for name in self.names)
        for inputs, units in self._blocks:
            if add:
                add_product(self._x[inputs], dy[units].T, weights[:, units], self.workspace, progress)
            else:
                product(self._x[inputs], dy[units].T, weights[:, units], progress, self.workspace.kernel(matmul))
        if add:
            np.add(bias, np.sum(dy, axis=1, out=self._array("bias", bias.shape, bias.dtype)), out=bias)
        else:
            np.sum(dy, axis=1, out=bias)

    def _array(self, part: str, shape: tuple[int, ...], dtype: Any) -> Array:
        return self.workspace.array(f"{self.stage.layer.name}.split.{part}", shape, dtype)


def product(a: Array, b: Array, out: Array, progress: Callable[[], None] | None, multiply: Product = matmul) -> None:
    """out ← a·b, a block of rows at a time, calling `progress` after each to let messages advance. Without `progress`,
    and on a GPU, which leaves the host free, it is one product."""
    if progress is None or not isinstance(out, np.ndarray):
        multiply(a, b, out)
        return
    for block in blocks(len(a), _rows(b)):
        multiply(a[block], b, out[block])
        progress()


def add_product(a: Array, b: Array, out: Array, workspace: Workspace, progress: Callable[[], None] | None) -> None:
    """out ← out + a·b, in blocks that are added while they are in cache (NumPy's product cannot add to its output).

    On a GPU it is one product, since cuBLAS does not accept some of the rows of a transposed `a` as a matrix.
    """
    rows = min(_rows(b), len(a)) if isinstance(out, np.ndarray) else len(a)
    scratch = workspace.array("split.product", (rows, b.shape[1]), out.dtype)
    for block in blocks(len(a), rows):
        target, part = out[block], scratch[: block.stop - block.start]
        workspace.kernel(matmul)(a[block], b, part)
        np.add(target, part, out=target)
        if progress is not None:
            progress()


def _rows(b: Array) -> int:
    return max(ROWS, int(BLOCK / max(b.size, 1)))
