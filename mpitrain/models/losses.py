"""Losses over the outputs z [n, classes] of a network, targets [n] being class numbers.

Sums are taken in float64. NaN in z is NaN in the loss.
"""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from mpitrain.flat import Array
from mpitrain.models.workspace import Workspace


class Loss(ABC):
    """A loss of outputs and class numbers. A sum is a number, or on another device an array of one."""

    @abstractmethod
    def loss(self, z: Array, targets: Array, workspace: Workspace) -> Any:
        """The summed loss; z is lost."""

    @abstractmethod
    def loss_and_gradient(self, z: Array, targets: Array, workspace: Workspace) -> Any:
        """The summed loss; z ← ∂(mean loss)/∂z."""


class Softmax(Loss):
    """Cross-entropy of softmax outputs: log Σ exp(z) − z_target."""

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

    def loss(self, z: Array, targets: Array, workspace: Workspace) -> Any:
        losses = _losses(z, workspace)
        workspace.ops.logistic_loss(z, targets, losses)
        return losses.sum()

    def loss_and_gradient(self, z: Array, targets: Array, workspace: Workspace) -> Any:
        losses = _losses(z, workspace)
        workspace.ops.logistic_gradient(z, targets, losses)
        return losses.sum()


def _losses(z: Array, workspace: Workspace) -> Array:
    """Room for one number an example."""
    return workspace.array("loss.losses", (len(z),), np.dtype(np.float64))


#: Losses by the name of the outputs they belong to.
LOSSES: dict[str, type[Loss]] = {"softmax": Softmax, "logistic": Logistic}
