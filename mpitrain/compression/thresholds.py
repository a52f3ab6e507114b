"""Thresholds, integer weights and leftover residuals of the sparse delta exchange.

Strom, Scalable Distributed DNN Training Using Commodity GPU Cloud Computing, Interspeech 2015, §2.3 to 2.6. The pass
over the residual itself is `residual.accumulate`. Residual and threshold are in summed units: gradients of a
minibatch's samples added, not averaged, and never divided by the number of peers.

An emitted element leaves the residual as a whole multiple, its level, of a quantum: of the threshold, at most 2^(b − 1)
times with b bits an element (§2.5, which has b = 1), or of what moves a weight by one unit, which is unquantised.

A weight is w = fl(c·UNIT) with an int32 count c, and a message moves counts by whole steps n: integer sums commute, so
replicas hold the same bits whatever order the messages came in (§2.3 needs exactly that, and float sums lack it).
"""

from collections.abc import Sequence
from math import exp, frexp, isfinite, ldexp, log

import numpy as np

from mpitrain.errors import BadInput
from mpitrain.flat import Array, blocks

UNIT = 2.0**-26
#: Largest magnitude of a count; weights reach ±32.
COUNT_MAX = 2**31 - 1
#: Bits of an element that is sent unquantised: a sign, and a level of 1 to COUNT_MAX.
UNQUANTISED = 32
#: A step of fewer units than this is off the asked η·threshold by 3 % and more.
COARSE = 16


def round_threshold(threshold: float) -> float:
    """The nearest number with 8 significant bits.

    Subtracting it from a float32 residual below 2¹⁶ times itself (float64: 2⁴⁵) does not round. Raises BadInput when
    not within 2^±100, where float32 has room for that.
    """
    if not 2.0**-100 <= threshold <= 2.0**100:
        raise BadInput(f"threshold = {threshold}: must be positive and within 2^-100 to 2^100")
    mantissa, exponent = frexp(threshold)
    return ldexp(round(mantissa * 256), exponent - 8)


def adapted(level: float, density: float, target: float, rate: float) -> float:
    """The next minibatch's threshold before rounding, so that the mean share of elements sent tends to `target`.

    level·exp((density/target − 1)/10), at most doubled, at least times 0.9. `density` is elements sent ÷ vector length
    ÷ minibatches since the last message: its mean is the target, however uneven messages are, where the threshold
    changes by little in the long run. A threshold that fell faster would free all elements that wait just below it at
    once. A start too low by 10⁵ is mended in 20 minibatches, one too high in 120. The result stays where a step at
    learning rate `rate` (per sample) is not coarse, and moves a weight by less than 16.
    """
    moved = level * exp(min((density / target - 1) / 10, log(2)))
    return min(max(moved, COARSE * UNIT / rate), COUNT_MAX // 2 * UNIT / rate)


def integer_step(rate: float, threshold: float) -> int:
    """n = round(η·threshold/UNIT), by how much one emitted element moves a count. `rate` is η per sample.

    Raises BadInput when n is 0 or beyond int32.
    """
    units = rate * threshold / UNIT
    step = round(units) if isfinite(units) else COUNT_MAX + 1
    if not 0 < step <= COUNT_MAX:
        raise BadInput(
            f"learning rate {rate} × threshold {threshold} is {units:.3g} units of 2^-26: must be 1 to 2^31 - 1"
        )
    return step


def greatest_level(bits: int) -> int:
    """The largest multiple of a quantum that an element of `bits` bits, one of them its sign, can express."""
    return min(2 ** (bits - 1), COUNT_MAX)


def unit_quantum(rate: float) -> float:
    """The residual whose η-fold is one UNIT, with 22 significant bits. `rate` is η per sample.

    With so few bits, n times the quantum is exact in float64 for every level n, and a residual less its nearest such
    multiple is exact in its own dtype.
    """
    mantissa, exponent = frexp(UNIT / rate)
    return ldexp(round(ldexp(mantissa, 22)), exponent - 22)


def round_weights(weights: Array, counts: Array) -> None:
    """counts ← round(weights/UNIT); weights ← fl(counts·UNIT). `weights` float [n], `counts` int32 [n].

    Raises BadInput when a weight is not finite or beyond ±32.
    """
    for block in blocks(counts.size):
        units = np.rint(np.multiply(weights[block], 1 / UNIT, dtype=np.float64))
        if not np.max(np.abs(units)) <= COUNT_MAX:  # also true if an element is NaN
            raise BadInput("initial weights: an element is not finite or beyond ±32, which integer weights cannot hold")
        counts[block] = units
    restore_weights(counts, weights)


def restore_weights(counts: Array, weights: Array) -> None:
    """weights ← fl(counts·UNIT), as after reading a checkpoint. `counts` int32 [n], `weights` float [n]."""
    for block in blocks(counts.size):
        np.multiply(counts[block], UNIT, out=weights[block], dtype=np.float64, casting="same_kind")


def share_residuals(residuals: Sequence[Array], ranks: int, rank: int, out: Array) -> None:
    """The leftover residual that `rank` of `ranks` starts with when a run of len(residuals) ranks is resumed.

    As many ranks as before: each its own, to the bit. Otherwise the sum over the old ranks in equal parts, the last
    rank taking what rounding left; sums are float64. All arrays float [n].
    """
    if len(residuals) == ranks:
        out[...] = residuals[rank]
        return
    for block in blocks(out.size):
        total = np.zeros(out[block].size)
        for residual in residuals:
            total += residual[block]
        part = (total / ranks).astype(out.dtype)
        out[block] = part if rank < ranks - 1 else total - (ranks - 1) * part.astype(np.float64)
