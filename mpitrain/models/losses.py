"""Losses of the outputs z [n, classes] of a network, for targets [n], which are class numbers.

Sums are computed in float64. NaN in z gives NaN in the loss.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

import numpy as np

from mpitrain.flat import Array
from mpitrain.models.workspace import Workspace


class Loss(ABC):
    """A loss of outputs and class numbers. A sum is a number, or on a GPU an array with one element."""

    name: ClassVar[Literal["softmax", "logistic"]]

    @abstractmethod
    def loss(self, z: Array, targets: Array, workspace: Workspace) -> Any:
        """The summed loss; z is overwritten."""

    @abstractmethod
    def loss_and_gradient(self, z: Array, targets: Array, workspace: Workspace) -> Any:
        """The summed loss; z ← ∂(mean loss)/∂z."""


class Softmax(Loss):
    """Cross-entropy of softmax outputs: log Σ exp(z) − z_target."""

    name = "softmax"

    def loss(self, z: Array, targets: Array, workspace: Workspace) -> Any:
        losses = _losses(z, workspace)
        workspace.ops.softmax_loss(z, targets, losses)
        return losses.sum()

    def loss_and_gradient(self, z: Array, targets: Array, workspace: Workspace) -> Any:
        losses = _losses(z, workspace)
        workspace.ops.softmax_gradient(z, targets, losses)
        return losses.sum()


class Logistic(Loss):
    """Cross-entropy of independent logistic outputs (Krizhevsky 2014 §3), summed over classes.

    Σ_c log(1 + exp(z_c)) − z_target.
    """

    name = "logistic"

    def loss(self, z: Array, targets: Array, workspace: Workspace) -> Any:
        losses = _losses(z, workspace)
        workspace.ops.logistic_loss(z, targets, losses)
        return losses.sum()

    def loss_and_gradient(self, z: Array, targets: Array, workspace: Workspace) -> Any:
        losses = _losses(z, workspace)
        workspace.ops.logistic_gradient(z, targets, losses)
        return losses.sum()


def _losses(z: Array, workspace: Workspace) -> Array:
    """A buffer for one number per example."""
    return workspace.array("loss.losses", (len(z),), np.dtype(np.float64))


#: Losses by the name of the output layer.
LOSSES: dict[str, type[Loss]] = {"softmax": Softmax, "logistic": Logistic}
