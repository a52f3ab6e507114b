"""Losses over the outputs z [n, classes] of a network, targets [n] being class numbers.

Sums are taken in float64. NaN in z is NaN in the loss.
"""

from abc import ABC, abstractmethod

import numpy as np

from mpitrain.flat import Array
from mpitrain.models.workspace import Workspace


class Loss(ABC):
    """A loss of outputs and class numbers."""

    @abstractmethod
    def loss(self, z: Array, targets: Array, workspace: Workspace) -> float:
        """The summed loss; z is lost."""

    @abstractmethod
    def loss_and_gradient(self, z: Array, targets: Array, workspace: Workspace) -> float:
        """The summed loss; z ← ∂(mean loss)/∂z."""


class Softmax(Loss):
    """Cross-entropy of softmax outputs: log Σ exp(z) − z_target, with the greatest output subtracted first."""

    def loss(self, z: Array, targets: Array, workspace: Workspace) -> float:
        return self._exponentials(z, targets, workspace)[0]

    def loss_and_gradient(self, z: Array, targets: Array, workspace: Workspace) -> float:
        loss, sums = self._exponentials(z, targets, workspace)
        np.multiply(z, 1 / (len(z) * sums), out=z)
        z[workspace.xp.arange(len(z)), targets] -= 1 / len(z)
        return loss

    @staticmethod
    def _exponentials(z: Array, targets: Array, workspace: Workspace) -> tuple[float, Array]:
        """z ← exp(z − greatest); returns the summed loss and the sums [n, 1] of z."""
        np.subtract(z, z.max(axis=1, keepdims=True), out=z)
        chosen = z[workspace.xp.arange(len(z)), targets]
        np.exp(z, out=z)
        sums = z.sum(axis=1, keepdims=True)
        return float((np.log(sums[:, 0]) - chosen).sum(dtype=np.float64)), sums


class Logistic(Loss):
    """Cross-entropy of independent logistic outputs (Krizhevsky 2014 §3), summed over classes.

    Σ_c log(1 + exp(z_c)) − z_target, with log(1 + exp(z)) = max(z, 0) + log(1 + exp(−|z|)).
    """

    def loss(self, z: Array, targets: Array, workspace: Workspace) -> float:
        return self._loss(z, targets, workspace)

    def loss_and_gradient(self, z: Array, targets: Array, workspace: Workspace) -> float:
        loss = self._loss(z, targets, workspace)
        workspace.ops.sigmoid(z)
        z[workspace.xp.arange(len(z)), targets] -= 1
        np.multiply(z, 1 / len(z), out=z)
        return loss

    @staticmethod
    def _loss(z: Array, targets: Array, workspace: Workspace) -> float:
        soft = workspace.array("logistic.soft", z.shape, z.dtype)
        np.abs(z, out=soft)
        np.negative(soft, out=soft)
        np.log1p(np.exp(soft, out=soft), out=soft)
        part = workspace.array("logistic.part", z.shape, z.dtype)
        np.add(soft, np.maximum(z, 0, out=part), out=soft)
        chosen = z[workspace.xp.arange(len(z)), targets]
        return float(soft.sum(dtype=np.float64) - chosen.sum(dtype=np.float64))


#: Losses by the name of the outputs they belong to.
LOSSES: dict[str, type[Loss]] = {"softmax": Softmax, "logistic": Logistic}
