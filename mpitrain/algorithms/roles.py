"""The roles that an algorithm's arithmetic has: a worker's, and that of a master that computes. No messages here.

All work on any slice of the flat vectors: on cache blocks, on shares of a centre, on a GPU, in a simulation. The
equations are in mpitrain/rules; the local step within them is an optimizer's.
"""

from typing import ClassVar

from mpitrain.flat import Array
from mpitrain.optimizers import Buffers


class WorkerRule:
    """A worker's arithmetic between its own vectors and a centre: exchanges, and steps between them.

    `vectors` are what a checkpoint keeps of it, by name. `at` is where the next gradient is to be taken.
    """

    vectors: Buffers

    @property
    def at(self) -> Array:
        """Where the next gradient is to be taken."""
        raise NotImplementedError

    def begin(self, eta: float, workers: int) -> None:
        """An exchange begins at the learning rate `eta`, with so many workers taking part."""

    def exchange(self, piece: slice, centre: Array, t: int) -> Array:
        """The exchange of a piece at local time t; what the centre gains there, untouched until the next exchange."""
        raise NotImplementedError

    def step(self, part: slice, g: Array, eta: float, t: int, first: bool) -> None:
        """One step of a part, whose gradient is `g`; `first` after an exchange."""
        raise NotImplementedError

    def pending(self, piece: slice) -> Array | None:
        """At the end: what the centre is still to gain, None where nothing is."""
        return None

    def restart(self, piece: slice, centre: Array) -> None:
        """Begin at the centre, without a past."""
        raise NotImplementedError

    def restored(self) -> None:
        """The vectors have been filled from a checkpoint."""


class AveragingRule(WorkerRule):
    """A worker's arithmetic where all ranks exchange at the same step, by sums over them, and each holds the centre.

    `overlaps`: an exchange begins before a step and its sums travel while the gradient is computed. Else it follows
    the step, and the last steps of a training are followed by one too.
    """

    overlaps: ClassVar[bool] = False

    def due(self, t: int) -> bool:
        """Whether there is an exchange with step t."""
        raise NotImplementedError

    @property
    def summed(self) -> list[Array]:
        """The vectors that an exchange sums over the ranks, in place."""
        raise NotImplementedError

    def offer(self, b: slice, centre: Array, t: int) -> None:
        """Make a block of `summed` ready; `centre` is that block of it."""

    def take(self, b: slice, vectors: Buffers, ranks: int) -> None:
        """The sums of a block over so many ranks have come: move the centre, whose block is in `vectors`."""
        raise NotImplementedError


class MasterRule:
    """What a master that computes does with what a worker hands over."""

    def merge(self, vectors: Buffers, delta: Array, scratch: Array, *, eta: float, stale: int, t: int) -> None:
        """Take up a worker's `delta`, which is `stale` updates old, at the master's time t. Slices of one length."""
        raise NotImplementedError
