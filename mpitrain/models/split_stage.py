"""A part's share of a fully connected layer: what it can compute without the other parts.

Arrays of activations and their gradients are unit-major, [units, n], so that a part's units are one contiguous piece.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from mpitrain.flat import Array
from mpitrain.models.layer import Views
from mpitrain.models.partition import Stage
from mpitrain.models.workspace import Workspace

Matmul = Callable[[Array, Array, Array], Any]  #: of a, b, out

#: Multiplications of one block of a matrix product: about 2 ms of one core, which is how often messages are pushed on.
BLOCK = 9e7
#: Rows that a block needs to run at nearly full speed (benchmarks/hybrid/progress.py).
ROWS = 512


def product(a: Array, b: Array, out: Array, pulse: Callable[[], None] | None, matmul: Matmul = np.matmul) -> None:
    """out ← a·b, a block of rows at a time, with a `pulse` after each; all at once where there is none, and on a GPU,
    which leaves the host free."""
    if pulse is None or not isinstance(out, np.ndarray):
        matmul(a, b, out)
        return
    rows = _rows(a, b)
    for start in range(0, len(a), rows):
        matmul(a[start : start + rows], b, out[start : start + rows])
        pulse()


def add_product(a: Array, b: Array, out: Array, workspace: Workspace, pulse: Callable[[], None] | None) -> None:
    """out ← out + a·b, by blocks that are added while they are in cache (NumPy's product cannot add to its output).

    On a GPU all at once: some rows of a transposed `a` are no matrix that its products take.
    """
    rows = min(_rows(a, b), len(a)) if isinstance(out, np.ndarray) else len(a)
    scratch = workspace.array("split.product", (rows, b.shape[1]), out.dtype)
    for start in range(0, len(a), rows):
        block = out[start : start + rows]
        workspace.ops.matmul(a[start : start + rows], b, scratch[: len(block)])
        np.add(block, scratch[: len(block)], out=block)
        if pulse is not None:
            pulse()


def _rows(a: Array, b: Array) -> int:
    return max(ROWS, int(BLOCK / max(b.size, 1)))


class SplitStage:
    """The units `own` of a stage. `forward` comes first, then the three backward functions in any order."""

    def __init__(self, stage: Stage, own: slice, workspace: Workspace) -> None:
        self.stage, self.own, self.workspace = stage, own, workspace
        self.units, self.count = stage.layer.units, own.stop - own.start
        self.names = [parameter.name for parameter in stage.layer.parameters]

    def forward(self, views: Views, x: Array, out: Array, keep: Array | None, pulse: Any) -> None:
        """out [own units, n] ← keep · activation(Wᵀx + b) for x [inputs, n]; `keep` [own units, n] is dropout's."""
        weights, bias = (views[name] for name in self.names)
        self._x, self._keep = x, keep
        self._y = out if keep is None else self._array("y", out.shape, out.dtype)
        product(weights.T, x, self._y, pulse, self.workspace.ops.matmul)
        np.add(self._y, bias[:, None], out=self._y)
        for layer in self.stage.activations:
            layer.forward(views, self._y, True)
        if keep is not None:
            np.multiply(self._y, keep, out=out)

    def backward_activation(self, views: Views, dy: Array) -> None:
        """From the gradient after dropout and activation to the one before, in place."""
        if self._keep is not None:
            np.multiply(dy, self._keep, out=dy)
        for layer in reversed(self.stage.activations):
            layer.backward(views, views, dy)

    def input_gradient(self, views: Views, dy: Array, out: Array, pulse: Any) -> None:
        """out [inputs, n] ← W·dy: this part's term of the gradient by x, which is the sum over parts."""
        product(views[self.names[0]], dy, out, pulse, self.workspace.ops.matmul)

    def weight_gradient(self, gradients: Views, dy: Array, add: bool, pulse: Any) -> None:
        """x·dyᵀ and Σ dy, written over the gradients of this part's weights and biases, or added to them."""
        weights, bias = (gradients[name] for name in self.names)
        if add:
            add_product(self._x, dy.T, weights, self.workspace, pulse)
            np.add(bias, np.sum(dy, axis=1, out=self._array("bias", bias.shape, bias.dtype)), out=bias)
        else:
            product(self._x, dy.T, weights, pulse, self.workspace.ops.matmul)
            np.sum(dy, axis=1, out=bias)

    def _array(self, part: str, shape: tuple[int, ...], dtype: Any) -> Array:
        return self.workspace.array(f"{self.stage.layer.name}.split.{part}", shape, dtype)
