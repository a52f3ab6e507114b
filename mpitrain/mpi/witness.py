"""The interface to record or replay the events on which a rank's course depends beside its input and computation."""

from collections.abc import Callable
from typing import TypeVar

from mpitrain.mpi.launcher import BufSpec

T = TypeVar("T")


class Witness:
    """Passes all events through unrecorded; subclasses record or replay them."""

    def message(self, find: Callable[[int], T | None], source: int, tag: int, sender: Callable[[], int]) -> T | None:
        """The result of a probe, `find(source)`; if that found a message, `sender()` is the rank it came from."""
        return find(source)

    def happened(self, test: Callable[[], bool]) -> bool:
        """The result of a test for completion."""
        return test()

    def content(self, received: BufSpec) -> None:
        """Note what was received."""

    def clock(self, reading: float) -> float:
        """A reading of the clock."""
        return reading

    def stopped(self, asked: bool) -> bool:
        """Whether a check finds a stop request."""
        return asked

    def end(self, status: int, parameters: Callable[[], str]) -> None:
        """Note that the training has ended with this exit status, and parameters of this SHA-256."""
