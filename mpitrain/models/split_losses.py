"""The losses of losses.py for outputs that are divided over parts: a part has z [own classes, n] and all targets.

Softmax needs two small reductions over the parts, the largest output of each example and the sum of exponentials (both
[n]); independent logistic outputs need none, which is why Krizhevsky 2014, §5, chose them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal

import numpy as np

from mpitrain.errors import BadInput
from mpitrain.flat import Array
from mpitrain.models.losses import Logistic, Loss, Softmax
from mpitrain.models.workspace import Workspace

#: Replaces an array by its maximum or sum over all parts.
Reduce = Callable[[Array, Literal["max", "sum"]], None]


class SplitLoss(ABC):
    """One part's term of a loss, over its classes `own`. The terms of all parts add up to the loss."""

    def __init__(self, own: slice, workspace: Workspace) -> None:
        self.own, self.workspace = own, workspace

    @abstractmethod
    def loss_and_gradient(self, z: Array, targets: Array, scale: float, reduce: Reduce) -> float:
        """This part's term of the loss summed over the n examples; z ← scale · ∂(summed loss)/∂z."""

    def _chosen(self, targets: Array) -> tuple[Array, Array]:
        """Rows and columns in z of those targets that are among the own classes."""
        columns = np.nonzero((targets >= self.own.start) & (targets < self.own.stop))[0]
        return targets[columns] - self.own.start, columns


class SplitSoftmax(SplitLoss):
    """log Σ exp(z) − z_target; the first part contributes the logarithm."""

    def loss_and_gradient(self, z: Array, targets: Array, scale: float, reduce: Reduce) -> float:
        chosen = self._chosen(targets)
        row = self.workspace.array("split.row", targets.shape, z.dtype)
        np.max(z, axis=0, out=row)
        reduce(row, "max")
        np.subtract(z, row, out=z)
        loss = -float(z[chosen].sum(dtype=np.float64))
        np.exp(z, out=z)
        np.sum(z, axis=0, out=row)
        reduce(row, "sum")
        if self.own.start == 0:
            loss += float(np.log(row).sum(dtype=np.float64))
        np.divide(scale, row, out=row)
        np.multiply(z, row, out=z)
        z[chosen] -= scale
        return loss


class SplitLogistic(SplitLoss):
    """Σ_c log(1 + exp(z_c)) − z_target."""

    def loss_and_gradient(self, z: Array, targets: Array, scale: float, reduce: Reduce) -> float:
        chosen = self._chosen(targets)
        soft = self.workspace.array("split.soft", z.shape, z.dtype)
        # log(1 + exp(z)) = max(z, 0) + log(1 + exp(−|z|))
        np.negative(np.abs(z, out=soft), out=soft)
        np.log1p(np.exp(soft, out=soft), out=soft)
        loss = float(soft.sum(dtype=np.float64)) - float(z[chosen].sum(dtype=np.float64))
        loss += float(np.maximum(z, 0, out=soft).sum(dtype=np.float64))
        self.workspace.ops.sigmoid(z)
        z[chosen] -= 1
        np.multiply(z, scale, out=z)
        return loss


def split_loss(loss: Loss, own: slice, workspace: Workspace) -> SplitLoss:
    """The divided form of a loss. Raises BadInput for a loss without one."""
    forms: dict[type[Loss], type[SplitLoss]] = {Softmax: SplitSoftmax, Logistic: SplitLogistic}
    if type(loss) not in forms:
        raise BadInput(f"model.output: {type(loss).__name__} cannot be divided over the ranks of hybrid")
    return forms[type(loss)](own, workspace)
