"""DOWNPOUR (Dean et al. 2012, as in the Supplement of Zhang, Choromanska & LeCun 2015).

Whenever τ divides a worker's clock: `push`, then `pull`. At every step: `step`. At the end, a pending update is pushed.
"""

import numpy as np

from mpitrain.flat import Array


def push(centre: Array, v: Array) -> None:
    """Add a worker's accumulated update to the centre."""
    # x̃ ← x̃ + vⁱ
    np.add(centre, v, out=centre)


def pull(x: Array, v: Array, centre: Array) -> None:
    """The worker restarts from the centre."""
    # xⁱ ← x̃
    np.positive(centre, out=x)
    # vⁱ ← 0
    v.fill(0)


def step(x: Array, v: Array, u: Array) -> None:
    """A local step, added to the worker's parameters and to the update that it will push. u is −ηg for SGD."""
    # xⁱ ← xⁱ + u;  vⁱ ← vⁱ + u
    np.add(x, u, out=x)
    np.add(v, u, out=v)
