"""Compressors: what has not been sent lies in a residual; entries are taken out of it, and go into messages.

Every compressor conserves: what was put in, and is not in the residual, is the `amounts` of the entries that left it.
Their caller keeps the residual, which a checkpoint holds, and says at the beginning of each vector what factor it has.
"""

from collections.abc import Callable
from functools import partial
from math import inf

import numpy as np

from mpitrain.compression import replica
from mpitrain.compression import thresholds as rule
from mpitrain.compression.message import NO_STARTS, WireForm
from mpitrain.compression.residual import NO_LEVELS, SIGN, Entries, accumulate
from mpitrain.errors import TrainingFailed
from mpitrain.flat import Array

#: Makes memory for this many words, by default in host memory.
Memory = Callable[[int], Array]
host_words: Memory = partial(np.empty, dtype=np.uint32)


class Compressor:
    """Takes entries out of a `residual`, float [n]; `wire` makes messages of them.

    For the last entries, `threshold` is what an entry of level 1 takes out of the residual, or what unquantised entries
    exceeded, and `step` by how many units an entry of level 1 moves an integer weight.
    """

    def __init__(self, residual: Array, bits: int, codec: str, starts: Array = NO_STARTS) -> None:
        self.residual, self.bits = residual, bits
        self.wire = WireForm(residual.size, bits, codec, starts)
        self.threshold, self.step = 1.0, 1
        self._unit = 0.0  # what an entry of level 1 takes out if entries are unquantised, else 0
        self.target = 0.0  #: the share of elements to send, to which a threshold is adapted; 0: it is fixed

    def begin(self, scale: float, rate: float, emit: bool) -> None:
        """Begin a vector with the factor `scale` and the learning rate for sums; `end` gives entries only if `emit`."""
        raise NotImplementedError

    def take(self, part: slice, values: Array) -> None:
        """Add a part of the vector to the residual, while it is in cache; `end` adds the parts that were not taken."""

    def end(self, values: Array) -> Entries:
        """Add the parts of the vector that were not taken; returns the entries to send, none unless `emit` was true.

        Raises TrainingFailed when an element is not finite.
        """
        raise NotImplementedError

    def amounts(self, entries: Entries) -> Array:
        """What the last entries have taken out of the residual, float64 [k]."""
        levels = entries.levels if entries.levels.size else np.ones(entries.words.size)
        return np.where(entries.words & SIGN, -1.0, 1.0) * levels * (self._unit or self.threshold)

    @property
    def nothing(self) -> Entries:
        """No entries."""
        return Entries(host_words(0))

    def norm(self) -> float:
        """‖residual‖."""
        return float(np.sqrt(np.dot(self.residual, self.residual)))


class Thresholds(Compressor):
    """What exceeds a threshold, fixed or adapted to a target density (Strom 2015, §2.4 and 2.5).

    The threshold of the next vector, before it is rounded, is `numbers["threshold"]`, which a checkpoint holds. `clip`
    bounds the residual, in thresholds; 0: it is not bounded. `emit` is `residual.accumulate` on the residual's device.
    """

    def __init__(
        self,
        residual: Array,
        numbers: dict[str, float],
        bits: int = 1,
        codec: str = "auto",
        target_density: float = 0.0,
        clip: float = 0.0,
        emit: Callable[..., int] = accumulate,
        memory: Memory = host_words,
    ) -> None:
        super().__init__(residual, bits, codec)
        self._words = memory(residual.size)
        self._levels = memory(residual.size) if bits > 1 else NO_LEVELS
        self._numbers, self.target, self._clip = numbers, target_density, clip
        self._emit = partial(emit, greatest=rule.greatest_level(bits))
        self._since_last = 0
        self._rate = 0.0
        self.threshold = rule.round_threshold(numbers["threshold"])

    def begin(self, scale: float, rate: float, emit: bool) -> None:
        threshold = rule.round_threshold(self._numbers["threshold"])
        rate = max(rate, rule.UNIT / threshold)  # at a lower rate an entry still moves a weight by one unit
        if (rate, threshold) != (self._rate, self.threshold):
            self.step = self.step_at(rate)
            self._rate, self.threshold = rate, threshold
            if self.bits == rule.UNQUANTISED:
                self.step, self._unit = 1, rule.unit_quantum(rate)
        self._scale, self._emits = float(scale), emit
        self._left, self._counts, self._fault = self.residual.size, list[tuple[int, int]](), ""

    def take(self, part: slice, values: Array) -> None:
        if part.stop != self._left or self._fault:  # only a part that ends where the last one began
            return
        try:
            count = self._emit(
                self.residual[part],
                values,
                self._words[part],
                levels=self._levels[part],
                scale=self._scale,
                threshold=self.threshold if self._emits else inf,
                limit=self._clip * self.threshold or inf,
                quantum=self._unit,
                first=part.start,
            )
        except TrainingFailed as error:
            self._fault = str(error)  # raised at the end, if the loss does not say more before
            return
        self._left = part.start
        self._counts.append((part.start, count))

    def end(self, values: Array) -> Entries:
        if self._left:
            self.take(slice(0, self._left), values[: self._left])
        if self._fault:
            raise TrainingFailed(f"{self._fault}; a smaller learning rate may help")
        count = 0
        for start, found in reversed(self._counts):  # close the gaps: a part's words begin where the part begins
            for array in (self._words, self._levels):
                array[count : count + found] = array[start : start + found]
            count += found
        self._since_last += 1
        if self._emits:
            self._adapt(count)
        return Entries(self._words[:count], self._levels[:count])

    def step_at(self, rate: float) -> int:
        """By how many units an entry of level 1 moves a weight at this learning rate of sums."""
        return rule.integer_step(rate, rule.round_threshold(self._numbers["threshold"]))

    def _adapt(self, count: int) -> None:
        if self.target:
            density = count / self.residual.size / self._since_last
            self._numbers["threshold"] = rule.adapted(self._numbers["threshold"], density, self.target, self._rate)
        self._since_last = 0


def warm(codec: str, bits: int, dtype: np.dtype) -> None:
    """Exchange a few elements, dense and sparse, so that every compiled loop is in the cache on disk."""
    for size in (4, 100):
        compressor = Thresholds(np.zeros(size, dtype), {"threshold": 1.0}, bits, codec)
        compressor.begin(1.0, 1.0, emit=True)
        entries = compressor.end(np.where(np.arange(size) == 1, 2, 0).astype(dtype))
        residual, wire = compressor.residual, compressor.wire
        _, decoded = wire.decode(wire.encode(entries, 0, 0, 1, 1.0, np.empty(wire.capacity, np.uint8)), 0)
        counts = np.zeros(size, np.int32)
        replica.apply(decoded.words, 1, counts, residual, decoded.levels)
        replica.digest_change(decoded.words, 1, decoded.levels)
        replica.digest(counts, residual)
