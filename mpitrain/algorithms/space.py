"""What a search may try of an option: its values, and the scale on which they lie (`mpitrain advise`).

Each algorithm declares its `space` beside its options: axes by its keys, or by those of other tables with their dots.
An axis turns a number u in [0, 1) into a value. The axes of [training] are factors of what is configured.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Choice:
    """One of these, neighbours of which are alike."""

    values: tuple[object, ...]

    def at(self, u: float) -> Any:
        """The value at u."""
        return self.values[int(u * len(self.values))]


class MomentumChoice(Choice):
    """Those of a momentum μ, by which steps add up to 1/(1 − μ) times their length: learning rates are multiplied by
    1 − μ, so that rate and momentum can be chosen apart."""


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
#: What every algorithm has; τ, the minibatches between two exchanges; the usual momenta.
COMMON: Space = {RATE: Between(0.125, 8.0), MINIBATCH: Choice((0.5, 1, 2, 4))}
PERIODS, MOMENTA = Between(1, 64, whole=True), MomentumChoice((0.0, 0.5, 0.8, 0.9, 0.95))
