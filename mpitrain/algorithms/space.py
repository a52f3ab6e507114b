"""The values of an option that a search (`mpitrain advise`) may try, and the scale on which they lie.

Each algorithm declares its `space` beside its options: one axis a key of its table, or a dotted key of another.
An axis turns a number u in [0, 1) into a value. The axes of [training] are factors of what is configured.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Choice:
    """One of `values`, in an order in which neighbours are alike."""

    values: tuple[object, ...]

    def at(self, u: float) -> Any:
        """The value at u."""
        return self.values[int(u * len(self.values))]


class MomentumChoice(Choice):
    """A choice of momentum μ. Momentum makes a step 1/(1 − μ) times as long in the end, so the search multiplies the
    learning rate by 1 − μ: rate and momentum can then be chosen independently."""


@dataclass(frozen=True)
class Between:
    """From `low` to `high` on a logarithmic scale; `whole` numbers only."""

    low: float
    high: float
    whole: bool = False

    def at(self, u: float) -> Any:
        """The value at u."""
        value = self.low * (self.high / self.low) ** u
        return round(value) if self.whole else float(f"{value:.2g}")


Space = Mapping[str, Choice | Between]
RATE, MINIBATCH = "training.learning_rate", "training.minibatch"
#: The axes of every algorithm; an axis for τ, the minibatches between two exchanges, and one for a momentum.
COMMON: Space = {RATE: Between(0.125, 8.0), MINIBATCH: Choice((0.5, 1, 2, 4))}
PERIODS, MOMENTA = Between(1, 64, whole=True), MomentumChoice((0.0, 0.5, 0.8, 0.9, 0.95))
