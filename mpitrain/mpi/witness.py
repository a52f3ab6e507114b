"""What a rank's course depends on beside its own computing, at the place where it is seen: to record or replay it."""

from collections.abc import Callable
from typing import TypeVar

from mpitrain.mpi.launcher import BufSpec

T = TypeVar("T")


class Witness:
    """Of a rank that nobody watches: everything is as it is seen."""

    def message(self, find: Callable[[int], T | None], source: int, tag: int, sender: Callable[[], int]) -> T | None:
        """What `find(source)` finds at one look; then `sender` tells where it came from."""
        return find(source)

    def happened(self, test: Callable[[], bool]) -> bool:
        """What a test says."""
        return test()

    def content(self, received: BufSpec) -> None:
        """What has come with a message that was looked for."""

    def clock(self, reading: float) -> float:
        """What the clock says."""
        return reading

    def stopped(self, asked: bool) -> bool:
        """Whether a stop request is seen at a look for one."""
        return asked

    def end(self, status: int, parameters: Callable[[], str]) -> None:
        """The training has ended with this exit status, and parameters of this SHA-256."""
