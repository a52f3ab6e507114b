"""Minibatch, learning rate and number of workers as functions of the number of samples served."""

from bisect import bisect
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from math import ceil, inf, pi, sin
from typing import Literal

from mpitrain.errors import BadInput
from mpitrain.keys import Amount, AmountOrNone, Count, Fraction, Large, NotNegative, Positive, Section, Text


class Training(Section, frozen=True):
    """Length, learning rate and random numbers of the training."""

    epochs: Amount = 10.0  # length of the training, in passes over the training split
    minibatch: Count = 32  # samples of a worker's step
    learning_rate: Positive = 0.05  # η
    rate_per: Literal["minibatch", "sample"] = "minibatch"  # η multiplies the mean over a minibatch, or the sum
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """The learning rate after the warm-up: as the stages have it, or multiplied by what falls from 1 to 0 at the end of
    the training, linearly or as half a cosine."""
    warmup: AmountOrNone | Text = 0.0
    """How long the learning rate rises linearly at first: in epochs, as `"5%"` of the training, or `"500 updates"`."""
    clip_norm: NotNegative = 0.0
    """The largest norm of a minibatch's mean gradient: a larger one is scaled down to it. 0: none."""
    accumulate: Count = 1
    """In how many parts, one after the other, the gradient of a minibatch is computed, which takes less memory."""
    seed: Large = 1
    """Determines the order of samples, dropout and augmentation, and the initial weights unless `model.seed` does."""
    dtype: Literal["float32", "float64"] = "float32"  # precision of parameters and gradients


class Stage(Section, frozen=True, kw_only=True):
    """Settings that replace those of [training] from `at` on (in epochs, or as "25%" of the training)."""

    at: AmountOrNone | Text  # where the stage begins: in epochs, or as `"25%"` of the training
    minibatch: Count | None = None  # as in [training]
    learning_rate: Positive | None = None  # as in [training]
    rate_factor: Positive | None = None  # multiplies the stage's learning_rate, or without one the previous rate
    momentum: Fraction | None = None
    """With `asgd`, the master's momentum, where `algorithm.momentum` is above 0 (Chan & Lane's MOMENTUM(i))."""
    bias_factor: Positive | None = None
    """With `hybrid`, multiplies the biases' previous rate; without it they follow the weights' rate."""
    workers: Count | None = None  # number of ranks that compute gradients, with algorithms that can change it


@dataclass(frozen=True)
class Settings:
    """The settings at one position of a training. `learning_rate` as configured; `workers`: None for all.

    `bias_scale` multiplies the biases' rate in addition to `learning_rate`, if the algorithm has a rate of biases.
    """

    minibatch: int
    learning_rate: float
    workers: int | None
    bias_scale: float = 1.0
    momentum: float | None = None  # None: the algorithm's own


class Schedule:
    """The stages of a training on `samples` training samples; positions count samples served since the start.

    `step` tells the number of samples of an update from the minibatch; a warm-up may be given in updates. Raises
    BadInput naming what cannot be parsed, or a warm-up that is longer than the training.
    """

    def __init__(
        self, training: Training, stages: Sequence[Stage], samples: int, step: Callable[[int], int] = int
    ) -> None:
        self.samples, self._step = samples, step
        self.total = round(training.epochs * samples)
        now = Settings(training.minibatch, training.learning_rate, None)
        self.all, self._begins = [now], [0]  # the settings of every stage, in order, and where it begins
        placed = [(self._position(stage, number), stage) for number, stage in enumerate(stages)]
        for position, stage in sorted(placed, key=lambda pair: pair[0]):
            rate = (stage.learning_rate or now.learning_rate) * (stage.rate_factor or 1.0)
            scale = stage.bias_factor * now.learning_rate / rate if stage.bias_factor else 1.0
            minibatch, workers = stage.minibatch or now.minibatch, stage.workers or now.workers
            momentum = now.momentum if stage.momentum is None else stage.momentum
            now = Settings(minibatch, rate, workers, now.bias_scale * scale, momentum)
            self.all.append(now)
            self._begins.append(position)
        self.most_workers = max(settings.workers or 0 for settings in self.all)  # the most that a stage asks for
        self.late = [stage.at for position, stage in placed if position >= self.total > 0]  # of stages that never begin
        self._shape, self._warm = training.schedule, self._warmup(training.warmup)

    def at(self, served: int) -> Settings:
        """The settings once `served` samples have been served."""
        settings = self._of_stage(served)
        factor = self.factor(served)
        return settings if factor == 1.0 else replace(settings, learning_rate=factor * settings.learning_rate)

    @property
    def trained(self) -> dict[int, Settings]:
        """The settings by the numbers of their stages, without stages that have no samples, such as those after the
        end; all if none has any."""
        ends = [*self._begins[1:], self.total]
        found = [number for number, begin in enumerate(self._begins) if begin < min(ends[number], self.total)]
        return {number: self.all[number] for number in found or range(len(self.all))}

    @property
    def fastest(self) -> Settings:
        """The settings of the stage with the largest learning rate, once it is warm."""
        return max(self.trained.values(), key=lambda settings: settings.learning_rate)

    def factor(self, served: int) -> float:
        """The factor of the stages' learning rate once this many samples have been served: 1/w, 2/w, … in a warm-up of
        w updates, then what `training.schedule` says; above 0 until the end."""
        if served < self._warm:
            after = served + min(self._step(self._of_stage(served).minibatch), self._left(served))
            if after < self._warm:
                return after / self._warm
        if self._shape == "constant":
            return 1.0
        done = max(served - self._warm, 0) / max(self.total - self._warm, 1)
        left = 1.0 - min(done, 1.0)
        # (1 − cos(π·left))/2, which as such cancels to 0 at the end of 10⁹ samples: some algorithms divide by the rate
        return left if self._shape == "linear" else sin(0.5 * pi * left) ** 2

    def until_change(self, served: int) -> int:
        """Number of samples from `served` to the next stage or the end."""
        return min([*self._begins[bisect(self._begins, served) :], self.total]) - served

    def steps(self, workers: int) -> int:
        """Number of minibatches per worker if `workers` workers share them evenly."""
        total, ends = 0.0, [*self._begins[1:], self.total]
        for begin, settings, end in zip(self._begins, self.all, ends, strict=True):
            total += max(end - begin, 0) / (settings.minibatch * min(settings.workers or workers, workers))
        return ceil(total)

    def among(self, workers: int) -> "Schedule":
        """The same schedule, with stages of at most `workers` workers; `most_workers` is still what was asked for."""
        among = copy(self)
        among.all = [replace(now, workers=min(now.workers, workers) if now.workers else None) for now in self.all]
        return among

    def _position(self, stage: Stage, number: int) -> int:
        try:
            return self._samples(stage.at)
        except ValueError:
            raise BadInput(f'stages[{number}].at = {stage.at!r}: expected epochs, or a share such as "25%"') from None

    def _warmup(self, told: float | str) -> int:
        """The samples of the warm-up."""
        try:
            number, _, unit = str(told).partition(" ")
            samples = self._updates(int(number)) if unit == "updates" else self._samples(told)
        except ValueError:
            wanted = 'epochs, a share such as "5%", or "500 updates"'
            raise BadInput(f"training.warmup = {told!r}: expected {wanted}") from None
        if samples >= self.total > 0:
            raise BadInput(f"training.warmup = {told!r}: as long as the whole training")
        return samples

    def _updates(self, updates: int) -> int:
        """The samples of the first updates, none of which spans two epochs or stages. Raises ValueError for a negative
        number."""
        if updates < 0:
            raise ValueError
        served = 0
        while updates and served < self.total:
            step, left = self._step(self._of_stage(served).minibatch), self._left(served)
            own = min(updates, -(-left // step))
            served, updates = served + min(own * step, left), updates - own
        return served

    def _left(self, served: int) -> int:
        """Number of samples from `served` to the end of the epoch, of the stage or of the training."""
        return min(self.samples - served % self.samples, self.until_change(served))

    def _of_stage(self, served: int) -> Settings:
        """The settings of the stage, without the factor."""
        return self.all[bisect(self._begins, served) - 1]

    def _samples(self, length: float | str) -> int:
        """A length in epochs, or as a share of the training. Raises ValueError for anything else."""
        if isinstance(length, str):
            samples = float(length.removesuffix("%")) / 100 * self.total if length.endswith("%") else float("nan")
        else:
            samples = length * self.samples
        if not 0 <= samples < inf:
            raise ValueError
        return round(samples)
