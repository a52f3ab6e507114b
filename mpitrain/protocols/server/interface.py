"""The interface of centres, wherever their vector is stored: methods for workers, and methods for the master."""

from typing import NamedTuple

from mpitrain.flat import Array
from mpitrain.protocols.messages import FromWorker, Gradient
from mpitrain.sampling.queue import Queue, Work
from mpitrain.sampling.stages import Schedule


class Claimed(NamedTuple):
    """The samples that a worker has claimed. If there are none, `more` says whether there will be in a later stage."""

    works: list[Work]
    more: bool = True
    learning_rate: float = 0.0  # from a master that hands samples out: the present one


class Source(NamedTuple):
    """A queue that workers claim from without a dispenser, `minibatches` at a time: they share a place in it.

    If an epoch's order keeps `group` samples together, workers claim whole groups, and need not claim while they have
    minibatches left of one. 0: no groups.
    """

    queue: Queue
    schedule: Schedule
    minibatches: int
    group: int = 0

    def claim(self, place: int, worker: int, has: int = 0) -> tuple[Claimed, int]:
        """What the worker of this number, which `has` so many minibatches already, claims at a place, and the place
        after it."""
        works, after = self.queue.take(self.schedule, place, self.minibatches - has, worker, self.group)
        return Claimed(works, more=after < self.queue.end), after


class Centre:
    """A rank calls the methods of its role; a method that a centre does not need does nothing.

    `direct`: vectors are read to and pushed from the device's memory, else host memory. `pieces`: in the order in
    which this worker treats them. `poll_interval`: seconds between two polls of a master for whom nothing waits; None:
    short ones at first, then longer. `polls_when_idle`: how many polls may pass before an idle master does more.
    """

    direct = False
    pieces: list[slice]
    poll_interval: float | None = None
    polls_when_idle = 0

    # ---- a worker's

    def claim(self, has: int = 0) -> Claimed:
        """Take samples that no other worker gets. There are none at the end, before this worker's stage has come, or if
        the minibatches that it `has` suffice."""
        raise NotImplementedError

    def read(self, piece: slice, out: Array) -> int | None:
        """Copy a piece of the centre to `out`; returns the centre's version if it has versions. Call it for all pieces,
        once each and in order, after a claim that has left the worker with samples."""
        raise NotImplementedError

    def push(self, piece: slice, d: Array, told: Gradient | None = None) -> None:
        """Start giving the centre `d`, which must stay untouched until `settle`: all pieces, once each and in order.

        `told` says which samples a gradient is of, for a master that merges; a centre that only adds needs none.
        """
        raise NotImplementedError

    def progress(self) -> None:
        """Let transfers in progress advance."""

    def settle(self) -> None:
        """Wait until what was given to `push` may be changed."""

    def complete(self) -> None:
        """Wait until the centre holds what was pushed."""

    # ---- the master's

    def put(self, theta: Array) -> None:
        """The centre ← θ, before the workers start."""
        raise NotImplementedError

    def copy(self, out: Array) -> None:
        """Copy the centre to `out`. Workers may change it meanwhile."""
        raise NotImplementedError

    def place(self) -> int:
        """How many samples the workers have claimed from a `Source`, which is the place in its queue."""
        return 0

    def handle(self, sender: int, message: FromWorker) -> bool:
        """Handle a worker's message if it is for the centre; returns whether it was."""
        return False

    def trained(self, worker: int, samples: int) -> None:
        """Note that a worker has trained on the first `samples` of those it has claimed; its next move is of them."""

    def untrained(self) -> list[Work] | None:
        """The samples that workers have claimed and that are in no move yet; None if the centre does not know."""
        return None

    def serve(self) -> bool:
        """Send what workers have asked for; returns whether anything was sent."""
        return False

    # ---- both

    def close(self) -> None:
        """Free the centre. Collective, at a clean end."""
