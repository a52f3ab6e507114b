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
    """The state of `CommonRate`, as in a checkpoint."""

    total: float  # the sum of the losses in the current window
    seen: Natural  # minibatches in the current window
    best: float  # the mean of the best window
    waited: Natural  # windows since the best one
    falls: Natural  # divisions so far


START = PlateauState(0.0, 0, inf, 0, 0)


@dataclass
class CommonRate:
    """η ÷5 and then ÷2 when the online predictive loss stagnates (Zhang, Choromanska & LeCun 2015, Figure 4): when none
    of `patience` consecutive windows is better than the best one by the fraction `tolerance` of its mean.

    `window` is the length of a window in minibatches of all workers; 0: the rate does not react to the loss. `factors`
    are the divisors, in order; after the last one the rate remains constant. One rank, which sees the losses of all
    (in the order of the updates if that is fixed), calls `observe`; the others are told of falls and call `hear`.
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
        """The present divisor of the initial rate."""
        return prod(self.factors[: self.falls]) if self.reacts else 1.0

    @property
    def reacts(self) -> bool:
        """Whether the rate depends on losses."""
        return self.window > 0

    @property
    def falls(self) -> int:
        """How often it has fallen."""
        return self.state.falls

    def observe(self, loss: float, minibatches: int = 1) -> None:
        """Take in the sum of the losses of some more minibatches, each measured before its update. All of them count in
        the window that they fill."""
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
        """Set how often the rate has fallen, as the observing rank tells."""
        self.state = self.state._replace(falls=falls)
