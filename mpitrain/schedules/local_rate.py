"""A worker's own learning rate: falling with its clock, and when its loss stagnates."""

from typing import Any

from mpitrain.rules import rates
from mpitrain.rules.plateau import Plateau, State, divisor, observe


class LocalRate:
    """η/(1 + γt)^0.5, ÷5 and then ÷2 when the online predictive loss stagnates (Zhang, Choromanska & LeCun 2015).

    Both go by the worker's own clock and losses, so that nothing is sent for them and a round-robin run repeats.
    `window` is a plateau's, in minibatches; 0: the rate does not fall.
    """

    def __init__(self, gamma: float, window: int) -> None:
        self._gamma = gamma
        self._plateau = Plateau(window=window) if window else None
        self._state = State()

    def __call__(self, eta: float, t: int) -> float:
        """What `eta` is at the local time t."""
        eta = rates.decayed(eta, t, self._gamma) if self._gamma else eta
        return eta / divisor(self._plateau, self._state) if self._plateau else eta

    def observe(self, loss: float) -> None:
        """One more minibatch's loss, taken before its update."""
        if self._plateau is not None:
            self._state = observe(self._plateau, self._state, loss)

    def numbers(self) -> list[Any]:
        """What a checkpoint keeps."""
        return list(self._state)

    def restore(self, numbers: list[Any]) -> None:
        """Go on from what a checkpoint kept."""
        self._state = State(*numbers)
