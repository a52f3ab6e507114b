"""A part's share of a fully connected layer, as far as it is computed without the other parts.

Arrays of activations and their gradients are unit-major, [units, n], so that the units of a part are contiguous.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from mpitrain.flat import Array, blocks, share
from mpitrain.models.layer import Views
from mpitrain.models.layers.fully_connected import column_blocks
from mpitrain.models.partition import FullyConnectedStage
from mpitrain.models.workspace import Workspace, matmul

Product = Callable[[Array, Array, Array], Any]  #: of a, b, out

#: Multiplications per block of a matrix product: about 2 ms on one core, the interval at which messages progress.
BLOCK = 9e7
#: Fewest rows of a block that run at nearly full speed (benchmarks/hybrid/progress.py).
ROWS = 512


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
