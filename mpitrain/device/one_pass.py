"""Update rules on the CPU, each in one pass over memory.

The bits are those of mpitrain/algorithms/optimizers/sgd.py: no product is fused with a sum.

NumPy takes two to four passes, over blocks that stay in the second-level cache. The difference matters if a step's
matrix products take little time for the number of weights: with small minibatches, or fast products.
"""

import numpy as np
from numba import njit
from numpy.typing import DTypeLike

from mpitrain.algorithms.optimizers import Rule
from mpitrain.algorithms.optimizers import sgd as rules
from mpitrain.flat import Array


@njit(cache=True, nogil=True)
def _sgd(theta, g, eta):  # type: ignore[no-untyped-def]
    for i in range(theta.size):
        theta[i] = theta[i] - g[i] * eta


@njit(cache=True, nogil=True)
def _classical(theta, v, g, eta, mu):  # type: ignore[no-untyped-def]
    for i in range(theta.size):
        v[i] = v[i] * mu - g[i] * eta
        theta[i] = theta[i] + v[i]


@njit(cache=True, nogil=True)
def _classical_without_momentum(theta, v, g, eta):  # type: ignore[no-untyped-def]
    for i in range(theta.size):
        v[i] = g[i] * -eta
        theta[i] = theta[i] + v[i]


@njit(cache=True, nogil=True)
def _look_ahead(out, x, v, mu):  # type: ignore[no-untyped-def]
    for i in range(out.size):
        out[i] = v[i] * mu + x[i]


def sgd(theta: Array, g: Array, scratch: Array, *, eta: float) -> None:
    """`optimizers.sgd.sgd` in one pass."""
    _sgd(theta, g, theta.dtype.type(eta))


def classical(theta: Array, v: Array, g: Array, scratch: Array, *, eta: float, mu: float) -> None:
    """`optimizers.sgd.classical` in one pass."""
    kind = theta.dtype.type
    if mu == 0.0:
        _classical_without_momentum(theta, v, g, kind(eta))
    else:
        _classical(theta, v, g, kind(eta), kind(mu))


def look_ahead(out: Array, x: Array, v: Array, mu: float) -> None:
    """`optimizers.sgd.look_ahead` in one pass."""
    _look_ahead(out, x, v, out.dtype.type(mu))


#: For each rule, the function that computes it in one pass.
FUSED: dict[Rule, Rule] = {
    rules.sgd: sgd,
    rules.classical: classical,
    rules.look_ahead: look_ahead,
}


def compile_all(dtype: DTypeLike) -> None:
    """Compile the loops, or load them from the cache on disk."""
    x, v, g = np.zeros((3, 1), dtype)
    sgd(x, g, g, eta=0.0)
    for mu in (0.0, 0.5):
        classical(x, v, g, g, eta=0.0, mu=mu)
    look_ahead(x, v, g, 0.5)
