"""The CPU of a simulated rank, on which updates and copies take virtual time."""

from functools import wraps
from typing import Any

from mpitrain.device.cpu import Cpu
from mpitrain.flat import Array
from mpitrain.mpi.communicator import Pace
from mpitrain.ops.residual import NO_LEVELS
from mpitrain.optimizers import Rule


class Paced(Cpu):
    """What it computes is the CPU's. Each application of a rule, and each pass that checks a vector, lets time pass."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace

    def fast(self, rule: Rule) -> Rule:
        does = super().fast(rule)

        @wraps(does)
        def paced(updated: Array, *arrays: Array, **scalars: float) -> None:
            does(updated, *arrays, **scalars)
            self._pace.update(updated.nbytes)

        return paced

    def emit(self, residual: Array, gradient: Array, words: Array, **how: Any) -> int:
        count = super().emit(residual, gradient, words, **how)
        self._pace.update(residual.nbytes)
        return count

    def apply_words(self, words: Array, step: int, counts: Array, weights: Array, levels: Array = NO_LEVELS) -> None:
        super().apply_words(words, step, counts, weights, levels)
        self._pace.update(words.size * weights.itemsize)

    def checksum(self, vector: Array) -> int:
        self._pace.copy(vector.nbytes)
        return super().checksum(vector)
