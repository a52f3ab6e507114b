"""The computation of each kernel on the CPU, with the names and arguments of `launch.Kernels`, over host arrays.

Where the CPU computes the same, the function is that of the rule or the layer.
"""

from math import inf

import numpy as np

from mpitrain.algorithms import averaging
from mpitrain.algorithms.optimizers import Rule
from mpitrain.algorithms.optimizers import adamw as adamw_rule
from mpitrain.algorithms.optimizers import sgd as sgd_rules
from mpitrain.compression.thresholds import COUNT_MAX, UNIT
from mpitrain.flat import Array
from mpitrain.models.layers.dropout import dropout as dropout
from mpitrain.models.layers.max_pool import max_pool as max_pool
from mpitrain.models.layers.max_pool import max_unpool as max_unpool
from mpitrain.models.layers.relu import relu_backward as relu_backward
from mpitrain.models.patches import add_patches as add_patches
from mpitrain.models.patches import gather_patches as gather_patches
from mpitrain.models.workspace import add_bias as add_bias
from mpitrain.models.workspace import add_scaled as add_scaled
from mpitrain.models.workspace import column_sums as column_sums

#: The sign bit of a word, and the value that means no index.
SIGN, NONE = np.uint32(1 << 31), np.uint32(0xFFFFFFFF)
#: Makes the checksum depend on the order of words: the constant of the golden ratio, as in splitmix64.
STEP = np.uint64(0x9E3779B97F4A7C15)


def accumulate(
    residual: Array,
    gradient: Array,
    words: Array,
    result: Array,
    levels: Array | None = None,
    *,
    scale: float,
    threshold: float,
    limit: float = inf,
    greatest: int = 1,
    quantum: float = 0.0,
) -> None:
    """residual += scale·gradient; subtract ±threshold from elements that exceed it and emit words; clip all to ±limit.

    With `levels` uint32 [n] ← 1 to `greatest`, subtract that multiple of the threshold, as often as it fits, or if
    there is a `quantum`, the nearest multiple of that.

    `words` uint32 [n]: the indices in ascending order, with the top bit set for negative elements. `result` uint32 [2]:
    the number of words, and the first non-finite index (the rest is then undefined), or NONE.
    """
    kind = residual.dtype.type
    residual += kind(scale) * gradient
    found = np.flatnonzero(~(np.abs(residual) <= threshold))
    values = residual[found]
    negative = values < 0
    words[: found.size] = found.astype(np.uint32) | negative * SIGN
    lost = np.flatnonzero(~(np.abs(residual) <= min(threshold, limit)) & ~np.isfinite(residual))
    sent = np.full(found.size, kind(threshold))
    if levels is not None:
        size = np.abs(values.astype(np.float64))
        often = np.rint(size / quantum) if quantum else np.floor(size / kind(threshold))
        levels[: found.size] = often = np.clip(often, 1, greatest)
        sent = often * (quantum or kind(threshold))
    residual[found] = values + np.where(negative, sent, -sent)
    np.clip(residual, -limit, limit, out=residual)
    result[:] = found.size, lost[0] if lost.size else NONE


def apply(words: Array, step: int, counts: Array, weights: Array, failed: Array, levels: Array | None = None) -> None:
    """counts −= step·level·sign and weights ← fl(counts·UNIT) at the indices in `words`, which are all different.

    `levels` uint32, one for each word; without, all are 1.

    `failed` uint32 [1] ← the smallest index whose count would leave the range, unless it is smaller already. Nothing is
    applied unless it is NONE.
    """
    index = words & ~SIGN
    move = np.int64(step) * (1 if levels is None else levels.astype(np.int64))
    count = counts[index] + np.where(words & SIGN, move, -move)
    failed[0] = min([failed[0], *index[np.abs(count) > COUNT_MAX]])
    if failed[0] == NONE:
        counts[index] = count
        weights[index] = count * UNIT


def checksum(vector: Array, result: Array) -> None:
    """`result` uint64 [1] ← n + Σ mix(w_i + (i + 1)·STEP) modulo 2^64, by splitmix64's finaliser.

    The 64-bit words w_i are made of the vector's n 32-bit words: its first half gives the lower halves, its second half
    the upper ones. For odd n, one word has no upper half.
    """
    words = vector.view(np.uint32)
    pairs = words.size // 2
    w = words[: words.size - pairs].astype(np.uint64)
    if words.size % 2:
        w[-1] = words[-1]
    w[:pairs] |= words[pairs : 2 * pairs].astype(np.uint64) << np.uint64(32)
    w += np.arange(1, w.size + 1, dtype=np.uint64) * STEP
    w = (w ^ w >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    w = (w ^ w >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    result[0] = words.size
    result += np.sum(w ^ w >> np.uint64(31))


def _allocating(rule: Rule) -> Rule:
    """The rule with scratch of its own, as large as the last vector."""

    def compute(*vectors: Array | None, **scalars: float) -> None:
        rule(*vectors, np.empty_like(vectors[-1]), **scalars)

    return compute


sgd, classical = _allocating(sgd_rules.sgd), _allocating(sgd_rules.classical)
krizhevsky = _allocating(sgd_rules.krizhevsky)
mdownpour = _allocating(sgd_rules.mdownpour)
adamw, moving_average = _allocating(adamw_rule.adamw), _allocating(averaging.moving_average)
look_ahead = sgd_rules.look_ahead


def softmax_loss(z: Array, targets: Array, losses: Array) -> None:
    """`losses` float64 [n] ← log Σ exp(z) − z_target for each row of z [n, classes]; `targets` int32 [n]."""
    _softmax(z.copy(), targets, losses)


def softmax_gradient(z: Array, targets: Array, losses: Array) -> None:
    """The same, and z ← ∂(mean loss)/∂z = (softmax(z) − one-hot)/n."""
    z /= _softmax(z, targets, losses)
    _less_one_hot(z, targets)


def _softmax(z: Array, targets: Array, losses: Array) -> Array:
    """z ← exp(z − maximum); returns its sums [n, 1]."""
    z -= z.max(axis=1, keepdims=True)
    chosen = z[np.arange(len(z)), targets]
    np.exp(z, out=z)
    sums = z.sum(axis=1, keepdims=True)
    losses[:] = np.log(sums[:, 0]).astype(np.float64) - chosen
    return np.asarray(sums)


def logistic_loss(z: Array, targets: Array, losses: Array) -> None:
    """`losses` float64 [n] ← Σ_c log(1 + exp(z_c)) − z_target for each row of z [n, classes]; `targets` int32 [n]."""
    soft = np.maximum(z, 0) + np.log1p(np.exp(-np.abs(z)))
    losses[:] = soft.sum(axis=1, dtype=np.float64) - z[np.arange(len(z)), targets]


def logistic_gradient(z: Array, targets: Array, losses: Array) -> None:
    """The same, and z ← ∂(mean loss)/∂z = (logistic(z) − one-hot)/n."""
    logistic_loss(z, targets, losses)
    bias_sigmoid(z, None)
    _less_one_hot(z, targets)


def _less_one_hot(z: Array, targets: Array) -> None:
    z[np.arange(len(z)), targets] -= 1
    z /= max(len(z), 1)


def bias_relu(y: Array, bias: Array | None) -> None:
    """y [..., units] ← max(y + bias, 0); NaN stays."""
    np.maximum(y if bias is None else y + bias, 0, out=y)


def bias_sigmoid(y: Array, bias: Array | None) -> None:
    """y [..., units] ← 1 / (1 + exp(−(y + bias)))."""
    with np.errstate(over="ignore"):  # exp(−x) = inf gives the right 0
        np.reciprocal(1 + np.exp(-(y if bias is None else y + bias)), out=y)


def sigmoid_backward(y: Array, dy: Array) -> None:
    """dy ← dy·y·(1 − y), rounded to the dtype at each step, unlike the CPU's loop."""
    dy *= y * (1 - y)


def lrn_forward(x: Array, y: Array, d: Array, *, half: int, scale: float, power: float, offset: float) -> None:
    """d ← offset + scale·Σ x² over the channels within `half`; y ← x·d^−power. Images [..., channels]."""
    d[...] = offset + scale * _window_sum(x * x, half)
    y[...] = x * d**-power


def lrn_backward(x: Array, d: Array, dy: Array, dx: Array, *, half: int, scale: float, power: float) -> None:
    """dx ← dy·d^−power − 2·scale·power·x·Σ dy·x·d^(−power − 1) over the same channels."""
    dx[...] = dy * d**-power - 2 * scale * power * x * _window_sum(dy * x * d**-power / d, half)


def _window_sum(terms: Array, half: int) -> Array:
    channels = terms.shape[-1]
    near = np.abs(np.subtract.outer(np.arange(channels), np.arange(channels))) <= half
    return np.asarray(terms @ near.astype(terms.dtype))
