"""Compressors: what has not been sent lies in a residual; entries are taken out of it, and go into messages.

Every compressor conserves: what was put in, and is not in the residual, is the `amounts` of the entries that left it.
Their caller keeps the residual, which a checkpoint holds, and says at the beginning of each vector what it counts.
"""

from collections.abc import Callable
from functools import partial
from math import inf

import numpy as np

from mpitrain.compression import digest, replica
from mpitrain.compression import thresholds as rule
from mpitrain.compression.message import WireForm
from mpitrain.compression.residual import NO_LEVELS, SIGN, Entries, accumulate
from mpitrain.errors import TrainingFailed
from mpitrain.flat import Array

#: Makes memory for this many words, by default in host memory.
Memory = Callable[[int], Array]
host_words: Memory = partial(np.empty, dtype=np.uint32)


class Compressor:
    """Takes entries out of a `residual`, float [n]; `wire` makes messages of them.

    Of the last entries, `threshold` is what one of level 1 takes out of the residual, or what they exceeded, and `step`
    by how many units it moves an integer weight.
    """

    def __init__(self, residual: Array, bits: int = 1, codec: str = "auto", memory: Memory = host_words) -> None:
        self.residual, self.bits = residual, bits
        self.wire = WireForm(residual.size, bits, codec)
        self._words = memory(residual.size)
        self._levels = memory(residual.size) if bits > 1 else NO_LEVELS
        self.threshold, self.step = 1.0, 1
        self._unit = 0.0  # where entries are unquantised, what one of level 1 takes out instead
        self.target = 0.0  #: the share of elements to send, to which a threshold is adapted; 0: it is fixed

    def begin(self, scale: float, rate: float, emit: bool) -> None:
        """Begin a vector that counts `scale` times, at a learning rate of sums, whose entries are sent if `emit`."""
        raise NotImplementedError

    def take(self, part: slice, values: Array) -> None:
        """Add a part of the vector to the residual, while it is in cache; others are left for `end`."""

    def end(self, values: Array) -> Entries:
        """Add what of the vector was not taken; the entries to send, none unless they are to be sent.

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
        return Entries(self._words[:0])

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
        super().__init__(residual, bits, codec, memory)
        self._numbers, self.target, self._clip = numbers, target_density, clip
        self._emit = partial(emit, greatest=rule.greatest_level(bits))
        self._since_last = 0
        self._rate = 0.0
        self.threshold = rule.round_threshold(numbers["threshold"])

    def begin(self, scale: float, rate: float, emit: bool) -> None:
        threshold = rule.round_threshold(self._numbers["threshold"])
        rate = max(rate, rule.UNIT / threshold)  # of a rate that has fallen further an entry moves a weight by one unit
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
            self._fault = str(error)  # the loss may say more
            return
        self._left = part.start
        self._counts.append((part.start, count))

    def end(self, values: Array) -> Entries:
        if self._left:
            self.take(slice(0, self._left), values[: self._left])
        if self._fault:
            raise TrainingFailed(f"{self._fault}; a smaller learning rate may help")
        count = 0
        for start, found in reversed(self._counts):  # each part's words are where the part is; those before it are less
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
    """An exchange of a few elements, dense and sparse, so that every compiled loop lies in the on-disk cache."""
    for size in (4, 100):
        compressor = Thresholds(np.zeros(size, dtype), {"threshold": 1.0}, bits, codec)
        compressor.begin(1.0, 1.0, emit=True)
        entries = compressor.end(np.where(np.arange(size) == 1, 2, 0).astype(dtype))
        residual, wire = compressor.residual, compressor.wire
        _, decoded = wire.decode(wire.encode(entries, 0, 0, 1, 1.0, np.empty(wire.capacity, np.uint8)), 0)
        counts = np.zeros(size, np.int32)
        replica.apply(decoded.words, 1, counts, residual, decoded.levels)
        digest.of_words(decoded.words, 1, decoded.levels)
        digest.of_replica(counts, residual)
