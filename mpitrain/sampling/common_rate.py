"""The learning rate of all workers, which falls, ÷5 then ÷2, when their online predictive loss stagnates.

Zhang, Choromanska & LeCun 2015, Figure 4. The online predictive loss (Cesa-Bianchi et al. 2004) is the mean of the
minibatch losses, each computed before the update with the minibatch; here over windows, since a mean since the start
would hide stagnation.
"""

from dataclasses import dataclass
from math import inf, prod
from typing import NamedTuple

from mpitrain.sampling.queue import Natural


class PlateauState(NamedTuple):
    """Losses of the current window, the best window's mean, windows since, divisions so far; as in a checkpoint."""

    total: float
    seen: Natural
    best: float
    waited: Natural
    falls: Natural


START = PlateauState(0.0, 0, inf, 0, 0)


@dataclass
class CommonRate:
    """η ÷5 and then ÷2 when the online predictive loss stagnates (Zhang, Choromanska & LeCun 2015, Figure 4): when none
    of `patience` consecutive windows is better than the best one by the fraction `tolerance` of its mean.

    `window` is the length of a window in minibatches of all workers; 0: the rate does not react to the loss. `factors`
    are the divisors, in order; after the last one the rate remains constant. Whoever sees the losses of all, in the
    order of the updates where that is fixed, observes; others hear of falls.
    """

    window: int = 0
    patience: int = 3
    tolerance: float = 0.01
    factors: tuple[float, ...] = (5.0, 2.0)
    state: PlateauState = START

    def __call__(self, eta: float) -> float:
        """The present value of the rate that is `eta` at first."""
        return eta / self.divisor

    @property
    def divisor(self) -> float:
        """What the initial rate is divided by at present."""
        return prod(self.factors[: self.falls]) if self.reacts else 1.0

    @property
    def reacts(self) -> bool:
        """Whether losses matter."""
        return self.window > 0

    @property
    def falls(self) -> int:
        """How often it has fallen."""
        return self.state.falls

    def observe(self, loss: float, minibatches: int = 1) -> None:
        """Take in the sum of the losses of some more minibatches, each measured before its update. A window ends with
        those that fill it."""
        total, seen, best, waited, falls = self.state
        total, seen = total + loss, seen + minibatches
        if not self.reacts:
            return
        if seen < self.window:
            self.state = PlateauState(total, seen, best, waited, falls)
            return
        mean, waited = total / seen, waited + 1
        if best - mean > self.tolerance * abs(mean):
            best, waited = mean, 0
        elif waited >= self.patience:
            waited, falls = 0, min(falls + 1, len(self.factors))
        self.state = PlateauState(0.0, 0, best, waited, falls)

    def hear(self, falls: int) -> None:
        """Take over how often it has fallen from whoever observes."""
        self.state = self.state._replace(falls=falls)
