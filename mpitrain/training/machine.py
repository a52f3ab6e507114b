"""One step of contrastive divergence on a restricted Boltzmann machine (Hinton, Training products of experts by
minimizing contrastive divergence, Neural Computation 2002; A practical guide to training RBMs, 2010).

Hidden units are binary. Visible units are binary, represented by their probabilities, or Gaussian of unit variance.
"""

from typing import NamedTuple

import numpy as np

from mpitrain.flat import Array


class Machine(NamedTuple):
    """weights [visible, hidden], and the biases of both kinds of units."""

    weights: Array
    hidden: Array
    visible: Array


def step(machine: Machine, v: Array, uniform: Array, *, eta: float, gaussian: bool) -> float:
    """CD-1 on the minibatch `v` [n, visible], in place; returns the squared error of the reconstruction, per example.

    `uniform` [n, hidden] in [0, 1) samples h: W += η⟨v·p(h|v) − v′·p(h|v′)⟩ with v′ the mean of v given h.
    """
    weights, hidden, visible = machine
    up = sigmoid(v @ weights + hidden)
    sampled = (uniform < up).astype(v.dtype)
    down = sampled @ weights.T + visible
    if not gaussian:
        down = sigmoid(down)
    again = sigmoid(down @ weights + hidden)
    rate = eta / len(v)
    weights += rate * (v.T @ up - down.T @ again)
    hidden += rate * (up - again).sum(axis=0)
    missing = v - down
    visible += rate * missing.sum(axis=0)
    return float(np.vdot(missing, missing)) / len(v)


def sigmoid(x: Array) -> Array:
    """1/(1 + exp(−x))."""
    return 0.5 * (1.0 + np.tanh(0.5 * x))
