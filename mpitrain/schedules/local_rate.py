"""A worker's own learning rate, which falls with its clock, or when its loss stagnates."""

from typing import Annotated

import msgspec

from mpitrain.rules import rates
from mpitrain.rules.plateau import Plateau, PlateauState, divisor, observe

Whole = Annotated[float, msgspec.Meta(ge=0, lt=1 << 53)]
#: The state of a LocalRate in a checkpoint, a PlateauState.
Rate = tuple[float, Whole, float, Whole, Whole]


class LocalRate:
    """η/(1 + γt)^0.5, ÷5 and then ÷2 when the online predictive loss stagnates (Zhang, Choromanska & LeCun 2015).

    Both use the worker's own clock and losses, so that they need no messages and round-robin runs are reproducible.
    `window` is the length of a plateau's window in minibatches; 0: the rate does not react to the loss.
    """

    def __init__(self, gamma: float, window: int) -> None:
        self._gamma = gamma
        self._plateau = Plateau(window=window) if window else None
        self._state = PlateauState()

    def __call__(self, eta: float, t: int) -> float:
        """The value of `eta` at local time t."""
        eta = rates.decayed(eta, t, self._gamma) if self._gamma else eta
        return eta / divisor(self._plateau, self._state) if self._plateau else eta

    def observe(self, loss: float) -> None:
        """Record the loss of one more minibatch, measured before its update."""
        if self._plateau is not None:
            self._state = observe(self._plateau, self._state, loss)

    def numbers(self) -> list[float]:
        """The state, for a checkpoint."""
        return list(self._state)

    def restore(self, numbers: Rate) -> None:
        """Restore the state from a checkpoint."""
        total, seen, best, waited, falls = numbers
        self._state = PlateauState(total, int(seen), best, int(waited), int(falls))
