"""The learning rate falls, ÷5 then ÷2, when the online predictive loss stagnates.

Zhang, Choromanska & LeCun 2015, Figure 4.

The online predictive loss (Cesa-Bianchi et al. 2004) is the mean of the minibatch losses, each computed before the
update with the minibatch; here over windows, since a mean since the start would hide stagnation.
"""

from dataclasses import dataclass
from math import inf, prod
from typing import NamedTuple


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
