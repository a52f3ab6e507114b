"""What a peer emits: its residual, its threshold, and the integer step of an emitted element (Strom 2015, §2.4)."""

import warnings
from functools import partial
from math import inf

import numpy as np

from mpitrain.algorithms import SparseDelta
from mpitrain.compression import digest, message, replica
from mpitrain.compression import thresholds as rule
from mpitrain.compression.residual import NO_LEVELS, Entries, accumulate
from mpitrain.errors import TrainingFailed
from mpitrain.flat import Array
from mpitrain.sampling.stages import Settings
from mpitrain.training.context import Session


class Compression:
    """The residual of `session.state`, to which gradients are added and from which words are taken."""

    def __init__(self, session: Session) -> None:
        self._config, self._numbers = session.config, session.state.local_numbers
        options = SparseDelta.of(session.config.algorithm)
        self.options = options
        self.residual = session.state.local["residual"]
        self._numbers.setdefault("threshold", options.threshold)
        self._words = session.device.host_words(self.residual.size)
        self._levels = session.device.host_words(self.residual.size) if options.bits > 1 else NO_LEVELS
        self._phantom = session.device.phantom
        self._since_last = 0
        greatest = rule.greatest_level(options.bits)
        self._emit = partial(session.device.emit, greatest=greatest)
        self._rate = self._quantum = 0.0
        #: Of the last words: the threshold they exceeded, and by how many units each moves a weight.
        self.threshold, self.step = rule.round_threshold(options.threshold), 1

    def begin(self, samples: int, settings: Settings, emit: bool) -> None:
        """Begin a minibatch of so many samples, whose entries are sent if `emit`."""
        self._prepare(settings)
        self._samples, self._emits = samples, emit
        self._left, self._counts, self._fault = self.residual.size, list[tuple[int, int]](), ""

    def take(self, part: slice, gradient: Array) -> None:
        """Add `samples` times a part of the mean gradient to the residual, while it is in cache: a part that ends where
        the last one began. Others are left for `end`."""
        if part.stop != self._left or self._fault:
            return
        try:
            count = self._accumulate(part, gradient)
        except TrainingFailed as error:
            self._fault = str(error)  # the loss may say more
            return
        self._left = part.start
        self._counts.append((part.start, count))

    def end(self, gradient: Array) -> Entries:
        """Add what of the gradient was not taken; the entries to send, none unless they are to be sent.

        Raises TrainingFailed when an element is not finite.
        """
        if self._left:
            self.take(slice(0, self._left), gradient[: self._left])
        if self._fault:
            raise TrainingFailed(f"{self._fault}; a smaller training.learning_rate may help")
        count = 0
        for start, found in reversed(self._counts):  # each part's words are where the part is; those before it are less
            for array in (self._words, self._levels):
                array[count : count + found] = array[start : start + found]
            count += found
        self._since_last += 1
        if self._emits:
            self._adapt(count)
        return Entries(self._words[:count], self._levels[:count])

    @property
    def nothing(self) -> Entries:
        """No entries."""
        return Entries(self._words[:0])

    def norm(self) -> float:
        """‖residual‖."""
        return float(np.sqrt(np.dot(self.residual, self.residual)))

    def step_at(self, settings: Settings) -> int:
        """By how many units an element emitted under these settings moves a weight."""
        with warnings.catch_warnings():  # said once for all ranks by the first
            warnings.simplefilter("ignore")
            return rule.integer_step(self._rate_at(settings), rule.round_threshold(self._numbers["threshold"]))

    def _rate_at(self, settings: Settings) -> float:
        return self.options.rate(self._config.training.rate_per, settings.learning_rate, settings.minibatch)

    def _prepare(self, settings: Settings) -> None:
        now = self._rate_at(settings), rule.round_threshold(self._numbers["threshold"])
        if now != (self._rate, self.threshold):
            self.step = self.step_at(settings)
            self._rate, self.threshold = now
            if self.options.bits == rule.UNQUANTISED:
                self.step, self._quantum = 1, rule.unit_quantum(self._rate)

    def _accumulate(self, part: slice, gradient: Array) -> int:
        return self._emit(
            self.residual[part],
            gradient,
            self._words[part],
            levels=self._levels[part],
            scale=float(self._samples),
            threshold=self.threshold if self._emits else inf,
            limit=self.options.clip * self.threshold or inf,
            quantum=self._quantum,
            first=part.start,
        )

    def _adapt(self, count: int) -> None:
        target = self.options.target_density
        if target and not self._phantom:
            density = count / self.residual.size / self._since_last
            least = rule.least_threshold(self._rate)
            self._numbers["threshold"] = rule.adapted(self._numbers["threshold"], density, target, least=least)
        self._since_last = 0


def warm(codec: str, bits: int, dtype: np.dtype) -> None:
    """An exchange of a few elements, dense and sparse, so that every compiled loop lies in the on-disk cache."""
    for size in (4, 100):
        residual, words, out = (
            np.zeros(size, dtype),
            np.empty(size, np.uint32),
            np.empty(message.capacity(size, bits), np.uint8),
        )
        levels = np.empty_like(words) if bits > 1 else NO_LEVELS
        gradient = np.where(np.arange(size) == 1, 2, 0).astype(dtype)
        count = accumulate(residual, gradient, words, scale=1.0, threshold=1.0, levels=levels)
        sent = message.encode(
            words[:count], message.MessageHeader(0, 0, size, 1, 1.0, bits), codec, out, levels[:count]
        )
        _, decoded = message.decode(sent, 0, size, words, levels, bits)
        counts = np.zeros(size, np.int32)
        replica.apply(decoded, 1, counts, residual, levels[:count])
        digest.of_words(decoded, 1, levels[:count])
        digest.of_replica(counts, residual)
