"""Losses of a network's outputs z [n, classes] for targets int32 [n], also of outputs that are divided over parts.

A part has z [own classes, n] and all targets; the terms of all parts add up to the loss. Softmax then needs two small
reductions over the parts, the largest output of each example and the sum of exponentials (both [n]); independent
logistic outputs need none, which is why Krizhevsky 2014, §5, chose them.

Sums are computed in float64. NaN in z gives NaN in the loss.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from mpitrain.flat import Array
from mpitrain.models.layers.sigmoid import bias_sigmoid
from mpitrain.models.workspace import Workspace

#: The function of the outputs.
Output = Literal["softmax", "logistic"]
#: Replaces an array by its maximum or sum over all parts.
Reduce = Callable[[Array, Literal["max", "sum"]], None]
#: Overwrites z and writes a loss for each example, float64 [n], to its last argument.
PerExample = Callable[[Array, Array, Array], object]
#: One part's term of the loss summed over the n examples; z ← scale · ∂(summed loss)/∂z. `first` tells the first part;
#: `chosen` are rows and columns in z of the targets among its own classes.
PerPart = Callable[[Array, tuple[Array, Array], float, Reduce, bool, Workspace], float]


@dataclass(frozen=True)
class Loss:
    """A loss by the name of its output. A sum is a number, or on a GPU an array with one element."""

    name: Output
    value: PerExample
    gradient: PerExample
    part: PerPart

    def loss(self, z: Array, targets: Array, workspace: Workspace) -> Any:
        """The summed loss; z is overwritten."""
        return self._sum(self.value, z, targets, workspace)

    def loss_and_gradient(self, z: Array, targets: Array, workspace: Workspace) -> Any:
        """The summed loss; z ← ∂(mean loss)/∂z."""
        return self._sum(self.gradient, z, targets, workspace)

    def split_loss_and_gradient(
        self, z: Array, targets: Array, scale: float, own: slice, reduce: Reduce, workspace: Workspace
    ) -> float:
        """The term of the part with the classes `own`; z ← scale · ∂(summed loss)/∂z."""
        columns = np.nonzero((targets >= own.start) & (targets < own.stop))[0]
        chosen = targets[columns] - own.start, columns
        return self.part(z, chosen, scale, reduce, own.start == 0, workspace)

    def _sum(self, function: PerExample, z: Array, targets: Array, workspace: Workspace) -> Any:
        losses = workspace.array("loss.losses", (len(z),), np.dtype(np.float64))
        workspace.kernel(function)(z, targets, losses)
        return losses.sum()


def softmax_loss(z: Array, targets: Array, losses: Array) -> Array:
    """log Σ exp(z) − z_target, with the largest output subtracted first; z ← exp(z − greatest), whose sums [n, 1] are
    returned."""
    np.subtract(z, z.max(axis=1, keepdims=True), out=z)
    chosen = z[np.arange(len(z)), targets]
    np.exp(z, out=z)
    sums = z.sum(axis=1, keepdims=True)
    np.subtract(np.log(sums[:, 0]), chosen, out=losses)
    return sums


def softmax_gradient(z: Array, targets: Array, losses: Array) -> None:
    """Like `softmax_loss`; z ← (softmax(z) − one-hot)/n."""
    sums = softmax_loss(z, targets, losses)
    np.multiply(z, 1 / (len(z) * sums), out=z)
    z[np.arange(len(z)), targets] -= 1 / len(z)


def softmax_part(
    z: Array, chosen: tuple[Array, Array], scale: float, reduce: Reduce, first: bool, workspace: Workspace
) -> float:
    """`softmax_gradient` of one part; the first part contributes the logarithm."""
    row = workspace.array("split.row", z.shape[1:], z.dtype)
    np.max(z, axis=0, out=row)
    reduce(row, "max")
    np.subtract(z, row, out=z)
    loss = -float(z[chosen].sum(dtype=np.float64))
    np.exp(z, out=z)
    np.sum(z, axis=0, out=row)
    reduce(row, "sum")
    if first:
        loss += float(np.log(row).sum(dtype=np.float64))
    np.divide(scale, row, out=row)
    np.multiply(z, row, out=z)
    z[chosen] -= scale
    return loss


def logistic_loss(z: Array, targets: Array, losses: Array) -> None:
    """Σ_c log(1 + exp(z_c)) − z_target (Krizhevsky 2014, §3), with log(1 + exp(z)) = max(z, 0) + log(1 + exp(−|z|))."""
    part = np.maximum(z, 0)
    chosen = z[np.arange(len(z)), targets]
    np.negative(np.abs(z, out=z), out=z)
    np.log1p(np.exp(z, out=z), out=z)
    np.add(z, part, out=z)
    np.subtract(z.sum(axis=1, dtype=np.float64), chosen, out=losses)


def logistic_gradient(z: Array, targets: Array, losses: Array) -> None:
    """Like `logistic_loss`; z ← (1/(1 + exp(−z)) − one-hot)/n."""
    outputs = z.copy()
    logistic_loss(outputs, targets, losses)
    bias_sigmoid(z, None)
    z[np.arange(len(z)), targets] -= 1
    np.multiply(z, 1 / len(z), out=z)


def logistic_part(
    z: Array, chosen: tuple[Array, Array], scale: float, reduce: Reduce, first: bool, workspace: Workspace
) -> float:
    """`logistic_gradient` of one part."""
    soft = workspace.array("split.soft", z.shape, z.dtype)
    # log(1 + exp(z)) = max(z, 0) + log(1 + exp(−|z|))
    np.negative(np.abs(z, out=soft), out=soft)
    np.log1p(np.exp(soft, out=soft), out=soft)
    loss = float(soft.sum(dtype=np.float64)) - float(z[chosen].sum(dtype=np.float64))
    loss += float(np.maximum(z, 0, out=soft).sum(dtype=np.float64))
    workspace.kernel(bias_sigmoid)(z, None)
    z[chosen] -= 1
    np.multiply(z, scale, out=z)
    return loss


#: Losses by the name of the output layer.
LOSSES: dict[str, Loss] = {
    "softmax": Loss("softmax", softmax_loss, softmax_gradient, softmax_part),
    "logistic": Loss("logistic", logistic_loss, logistic_gradient, logistic_part),
}
