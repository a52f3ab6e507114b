"""The learning rate of all workers, which falls when their common loss stagnates."""

from typing import Annotated

import msgspec

from mpitrain.rules.plateau import Plateau, PlateauState, divisor, observe

Whole = Annotated[float, msgspec.Meta(ge=0, lt=1 << 53)]
#: A PlateauState in a checkpoint.
RatePast = tuple[float, Whole, float, Whole, Whole]


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

    def numbers(self) -> list[float]:
        """The state, for a checkpoint."""
        return list(self._state)

    def restore(self, numbers: RatePast) -> None:
        """Restore the state from a checkpoint."""
        total, seen, best, waited, falls = numbers
        self._state = PlateauState(total, int(seen), best, int(waited), int(falls))
