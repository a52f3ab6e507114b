"""Minibatch, learning rate and number of workers as functions of the number of samples served."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import Literal

from mpitrain.errors import BadInput
from mpitrain.keys import Amount, AmountOrNone, Count, Fraction, Large, Positive, Section, Text


class Training(Section, frozen=True):
    """Length, learning rate and random numbers of the training."""

    epochs: Amount = 10.0  # length of the training, in passes over the training split
    minibatch: Count = 32  # samples of a worker's step
    learning_rate: Positive = 0.05  # η
    rate_per: Literal["minibatch", "sample"] = "minibatch"  # η multiplies the mean over a minibatch, or the sum
    seed: Large = 1
    """Determines the order of samples, dropout and augmentation, and the initial weights unless `model.seed` does."""
    dtype: Literal["float32", "float64"] = "float32"  # precision of parameters and gradients


class Stage(Section, frozen=True, kw_only=True):
    """Settings that replace those of [training] from `at` on (in epochs, or as "25%" of the training)."""

    at: AmountOrNone | Text  # where the stage begins: in epochs, or as `"25%"` of the training
    minibatch: Count | None = None  # as in [training]
    learning_rate: Positive | None = None  # as in [training]
    rate_factor: Positive | None = None  # multiplies the previous learning rate instead
    momentum: Fraction | None = None
    """With `asgd`, the master's momentum, where `algorithm.momentum` is above 0 (Chan & Lane's MOMENTUM(i))."""
    bias_factor: Positive | None = None
    """With `hybrid`, multiplies the biases' previous rate, instead of what changes the weights'."""
    workers: Count | None = None  # number of ranks that compute gradients, with algorithms that can change it


@dataclass(frozen=True)
class Settings:
    """The settings at one position of a training. `learning_rate` as configured; `workers`: None for all.

    `bias_scale` multiplies the biases' rate beside `learning_rate`, of algorithms that have one.
    """

    minibatch: int
    learning_rate: float
    workers: int | None
    bias_scale: float = 1.0
    momentum: float | None = None  # None: the algorithm's own


class Schedule:
    """The stages of a training on `samples` training samples; positions count samples served since the start.

    Raises BadInput naming a stage whose `at` cannot be parsed.
    """

    def __init__(self, training: Training, stages: Sequence[Stage], samples: int) -> None:
        self.samples = samples
        self.total = round(training.epochs * samples)
        now = Settings(training.minibatch, training.learning_rate, None)
        self._begins = [(0, now)]
        placed = [(self._position(stage, number), stage) for number, stage in enumerate(stages)]
        for position, stage in sorted(placed, key=lambda pair: pair[0]):
            rate = (stage.learning_rate or now.learning_rate) * (stage.rate_factor or 1.0)
            scale = stage.bias_factor * now.learning_rate / rate if stage.bias_factor else 1.0
            now = Settings(
                stage.minibatch or now.minibatch,
                rate,
                stage.workers or now.workers,
                now.bias_scale * scale,
                now.momentum if stage.momentum is None else stage.momentum,
            )
            self._begins.append((position, now))

    def at(self, served: int) -> Settings:
        """The settings once `served` samples have been served."""
        return next(settings for position, settings in reversed(self._begins) if position <= served)

    def until_change(self, served: int) -> int:
        """Number of samples from `served` to the next stage or the end."""
        following = [position for position, _ in self._begins if position > served]
        return min([*following, self.total]) - served

    @property
    def all(self) -> list[Settings]:
        """The settings of every stage, in order."""
        return [settings for _, settings in self._begins]

    def steps(self, workers: int) -> int:
        """Number of minibatches per worker if `workers` workers share them evenly."""
        ends = [*(position for position, _ in self._begins[1:]), self.total]
        total = 0.0
        for (begin, settings), end in zip(self._begins, ends, strict=True):
            total += max(end - begin, 0) / (settings.minibatch * min(settings.workers or workers, workers))
        return ceil(total)

    @property
    def most_workers(self) -> int:
        """The largest number of workers that a stage asks for; 0 if none does."""
        return max(settings.workers or 0 for _, settings in self._begins)

    def _position(self, stage: Stage, number: int) -> int:
        try:
            if isinstance(stage.at, str):
                fraction = float(stage.at.removesuffix("%")) / 100 if stage.at.endswith("%") else float("nan")
                position = fraction * self.total
            else:
                position = stage.at * self.samples
            if not 0 <= position < inf:
                raise ValueError
        except ValueError:
            raise BadInput(f'stages[{number}].at = {stage.at!r}: expected epochs, or a share such as "25%"') from None
        return round(position)
