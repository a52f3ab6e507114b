"""Losses of outputs z [n, classes] for targets int32 [n], one number per example, and their gradients.

`losses` is float64 [n], to be summed by the caller. NaN in z gives NaN in the loss. The `_gradient` functions also
replace z by ∂(mean loss)/∂z; the `_loss` functions overwrite z.
"""

import numpy as np

from mpitrain.flat import Array
from mpitrain.ops.elementwise import sigmoid


def softmax_loss(z: Array, targets: Array, losses: Array) -> None:
    """log Σ exp(z) − z_target, with the largest output subtracted first."""
    _exponentials(z, targets, losses)


def softmax_gradient(z: Array, targets: Array, losses: Array) -> None:
    """Like `softmax_loss`; z ← (softmax(z) − one-hot)/n."""
    sums = _exponentials(z, targets, losses)
    np.multiply(z, 1 / (len(z) * sums), out=z)
    z[np.arange(len(z)), targets] -= 1 / len(z)


def logistic_loss(z: Array, targets: Array, losses: Array) -> None:
    """Σ_c log(1 + exp(z_c)) − z_target, with log(1 + exp(z)) = max(z, 0) + log(1 + exp(−|z|))."""
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
    sigmoid(z)
    z[np.arange(len(z)), targets] -= 1
    np.multiply(z, 1 / len(z), out=z)


def _exponentials(z: Array, targets: Array, losses: Array) -> Array:
    """z ← exp(z − greatest); returns the sums [n, 1] of z."""
    np.subtract(z, z.max(axis=1, keepdims=True), out=z)
    chosen = z[np.arange(len(z)), targets]
    np.exp(z, out=z)
    sums = z.sum(axis=1, keepdims=True)
    np.subtract(np.log(sums[:, 0]), chosen, out=losses)
    return sums
