"""The learning rate of all workers, which falls, ÷5 then ÷2, when their online predictive loss stagnates.

Zhang, Choromanska & LeCun 2015, Figure 4. The online predictive loss (Cesa-Bianchi et al. 2004) is the mean of the
minibatch losses, each computed before the update with the minibatch; here over windows, since a mean since the start
would hide stagnation.
"""

from dataclasses import dataclass
from math import inf, prod
from typing import Annotated, NamedTuple

import msgspec

Whole = Annotated[float, msgspec.Meta(ge=0, lt=1 << 53)]
#: A PlateauState in a checkpoint.
RatePast = tuple[float, Whole, float, Whole, Whole]


@dataclass(frozen=True)
class Plateau:
    """Stagnation: none of `patience` consecutive windows of `window` minibatches is better than the best one by the
    fraction `tolerance` of its mean.

    `factors` are the divisors, in order; after the last one the rate remains constant.
    """

    window: int = 1000
    patience: int = 3
    tolerance: float = 0.01
    factors: tuple[float, ...] = (5.0, 2.0)


class PlateauState(NamedTuple):
    """The state of `observe`: losses of the current window, the best window's mean, windows since, divisions so far."""

    total: float = 0.0
    seen: int = 0
    best: float = inf
    waited: int = 0
    falls: int = 0


def observe(plateau: Plateau, state: PlateauState, loss: float, minibatches: int = 1) -> PlateauState:
    """The state after some more minibatches, of which `loss` is the sum of the losses.

    A window ends with those that fill it.
    """
    state = state._replace(total=state.total + loss, seen=state.seen + minibatches)
    if state.seen < plateau.window:
        return state
    mean = state.total / state.seen
    state = state._replace(total=0.0, seen=0)
    if state.best - mean > plateau.tolerance * abs(mean):
        return state._replace(best=mean, waited=0)
    if state.waited + 1 < plateau.patience:
        return state._replace(waited=state.waited + 1)
    return state._replace(waited=0, falls=min(state.falls + 1, len(plateau.factors)))


def divisor(plateau: Plateau, state: PlateauState) -> float:
    """The current divisor of the initial learning rate."""
    return prod(plateau.factors[: state.falls])


class CommonRate:
    """η ÷5 and then ÷2 when the online predictive loss stagnates (Zhang, Choromanska & LeCun 2015, Figure 4).

    `window` is the length of a plateau's window in minibatches of all workers; 0: the rate does not react to the loss.
    Whoever sees the losses of all, in the order of the updates where that is fixed, observes; others hear of falls.
    """

    def __init__(self, window: int = 0) -> None:
        self._plateau = Plateau(window=window) if window else None
        self._state = PlateauState()

    def __call__(self, eta: float) -> float:
        """The present value of the rate that is `eta` at first."""
        return eta / divisor(self._plateau, self._state) if self._plateau else eta

    @property
    def reacts(self) -> bool:
        """Whether losses matter."""
        return self._plateau is not None

    def observe(self, loss: float, minibatches: int = 1) -> None:
        """Take in the sum of the losses of some more minibatches, each measured before its update."""
        if self._plateau is not None:
            self._state = observe(self._plateau, self._state, loss, minibatches)

    @property
    def falls(self) -> int:
        """How often it has fallen."""
        return self._state.falls

    def hear(self, falls: int) -> None:
        """Take over how often it has fallen from whoever observes."""
        self._state = self._state._replace(falls=falls)

    def numbers(self) -> RatePast:
        """The state, for a checkpoint."""
        return self._state

    def restore(self, numbers: RatePast) -> None:
        """Restore the state from a checkpoint."""
        total, seen, best, waited, falls = numbers
        self._state = PlateauState(total, int(seen), best, int(waited), int(falls))
