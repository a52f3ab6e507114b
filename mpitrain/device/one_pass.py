"""Update rules on the CPU, each in one pass over memory.

The bits are those of sgd.py and adamw.py in mpitrain/algorithms/optimizers: no product is fused with a sum.

NumPy takes two to fifteen passes, over blocks that stay in the second-level cache. The difference matters if a step's
matrix products take little time for the number of weights: with small minibatches, or fast products.
"""

import numpy as np
from numba import njit
from numpy.typing import DTypeLike

from mpitrain.algorithms.optimizers import Rule
from mpitrain.algorithms.optimizers import adamw as adam
from mpitrain.algorithms.optimizers import sgd as rules


@njit(cache=True, nogil=True)
def sgd(theta, g, scratch, eta):  # type: ignore[no-untyped-def]
    """`optimizers.sgd.sgd` in one pass."""
    eta = theta.dtype.type(eta)
    for i in range(theta.size):
        theta[i] = theta[i] - g[i] * eta


@njit(cache=True, nogil=True)
def classical(theta, v, g, scratch, eta, mu):  # type: ignore[no-untyped-def]
    """`optimizers.sgd.classical` in one pass."""
    eta, mu = theta.dtype.type(eta), theta.dtype.type(mu)
    if mu == 0.0:
        for i in range(theta.size):
            v[i] = g[i] * -eta
            theta[i] = theta[i] + v[i]
    else:
        for i in range(theta.size):
            v[i] = v[i] * mu - g[i] * eta
            theta[i] = theta[i] + v[i]


@njit(cache=True, nogil=True)
def look_ahead(out, x, v, mu):  # type: ignore[no-untyped-def]
    """`optimizers.sgd.look_ahead` in one pass."""
    mu = out.dtype.type(mu)
    for i in range(out.size):
        out[i] = v[i] * mu + x[i]


def adamw(x, m, v, g, scratch, **constants):  # type: ignore[no-untyped-def]
    """`optimizers.adamw.adamw` in one pass."""
    _adamw(x, m, v, g, *adam.factors(**constants))


@njit(cache=True, nogil=True, error_model="numpy")  # a check of the divisor would forbid vector instructions
def _adamw(x, m, v, g, keep_m, take_m, keep_v, take_v, correct_v, epsilon, scale, decay):  # type: ignore[no-untyped-def]
    kind, decays = x.dtype.type, decay != 0.0
    keep_m, take_m, keep_v, take_v = kind(keep_m), kind(take_m), kind(keep_v), kind(take_v)
    correct_v, epsilon, scale, decay = kind(correct_v), kind(epsilon), kind(scale), kind(decay)
    for i in range(x.size):
        m[i] = m[i] * keep_m + g[i] * take_m
        v[i] = v[i] * keep_v + g[i] * g[i] * take_v
        u = m[i] / (np.sqrt(v[i]) * correct_v + epsilon) * scale
        x[i] = x[i] + ((u + x[i]) * decay if decays else u)


#: For each rule, the function that computes it in one pass.
FUSED: dict[Rule, Rule] = {
    rules.sgd: sgd,
    rules.classical: classical,
    rules.look_ahead: look_ahead,
    adam.adamw: adamw,
}


def compile_all(dtype: DTypeLike) -> None:
    """Compile the loops, or load them from the cache on disk."""
    x, v, g = np.zeros((3, 1), dtype)
    sgd(x, g, g, eta=0.0)
    classical(x, v, g, g, eta=0.0, mu=0.0)
    look_ahead(x, v, g, 0.5)
    _adamw(x, v, np.zeros_like(x), g, *[1.0] * len(adam.Factors._fields))
