"""DOWNPOUR (Dean et al. 2012, as in the Supplement of Zhang, Choromanska & LeCun 2015).

A worker calls `push` and then `pull` whenever τ divides its clock, and `step` at every step. At the end, it pushes the
update that is left.
"""

import numpy as np

from mpitrain.flat import Array


def push(centre: Array, v: Array) -> None:
    """Add a worker's accumulated update to the centre."""
    # x̃ ← x̃ + vⁱ
    np.add(centre, v, out=centre)


def pull(x: Array, v: Array, centre: Array) -> None:
    """Set the worker to the centre, and its accumulated update to 0."""
    # xⁱ ← x̃
    np.positive(centre, out=x)
    # vⁱ ← 0
    v.fill(0)


def step(x: Array, v: Array, u: Array) -> None:
    """Add a local step to the worker's parameters and to its accumulated update. u is −ηg for SGD."""
    # xⁱ ← xⁱ + u;  vⁱ ← vⁱ + u
    np.add(x, u, out=x)
    np.add(v, u, out=v)
