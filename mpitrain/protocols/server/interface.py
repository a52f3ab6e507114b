"""A centre, wherever it lives: one face for the workers, one for the master."""

from typing import NamedTuple

from mpitrain.flat import Array
from mpitrain.protocols.messages import FromWorker, Gradient
from mpitrain.sampling.queue import Queue, Work
from mpitrain.sampling.stages import Schedule


class Claimed(NamedTuple):
    """The samples that a worker has claimed. Where there are none, there will be `more` once its stage has come."""

    works: list[Work]
    more: bool = True
    learning_rate: float = 0.0  # where a master hands samples out: what holds at this point of the training


class Source(NamedTuple):
    """A queue that workers claim from without a dispenser, this many minibatches at a time: they share a place in it.

    Where an epoch's order has a `group` of samples together, they claim whole groups, and need not claim while they
    have minibatches of one.
    """

    queue: Queue
    schedule: Schedule
    minibatches: int
    group: int = 0

    def claim(self, place: int, worker: int, has: int = 0) -> tuple[Claimed, int]:
        """What the worker of this number, which `has` this many minibatches, claims at a place, and the place after
        it."""
        works, after = self.queue.take(self.schedule, place, self.minibatches - has, worker, self.group)
        return Claimed(works, more=after < self.queue.end), after


class Centre:
    """What a rank calls depends on its role; what a centre has no need of does nothing.

    `direct`: vectors are read to and pushed from where the device has them, else host memory. `pieces`: in the order in
    which this worker treats them. `poll_interval`: seconds between two polls of a master for whom nothing waits; None:
    short ones at first, then longer. `polls_when_idle`: how many polls may pass before an idle master does more.
    """

    direct = False
    pieces: list[slice]
    poll_interval: float | None = None
    polls_when_idle = 0

    # ---- a worker's

    def claim(self, has: int = 0) -> Claimed:
        """Take samples that nobody else then gets; none at the end, where this worker's stage has not come, or where
        the minibatches that it `has` suffice."""
        raise NotImplementedError

    def read(self, piece: slice, out: Array) -> int | None:
        """Copy a piece of the centre; its version where the centre has versions. All pieces once, in order, after a
        claim of a worker that then has samples."""
        raise NotImplementedError

    def push(self, piece: slice, d: Array, told: Gradient | None = None) -> None:
        """Start giving the centre `d`, which stays untouched until `settle`: all pieces once, in order.

        A centre that only adds needs no more. A master that merges gradients must be told what they are over.
        """
        raise NotImplementedError

    def progress(self) -> None:
        """Give what is under way a chance to move."""

    def settle(self) -> None:
        """Wait until what was given to `push` may be changed."""

    def complete(self) -> None:
        """Wait until the centre holds what was pushed."""

    # ---- the master's

    def put(self, theta: Array) -> None:
        """The centre ← θ, before the workers start."""
        raise NotImplementedError

    def copy(self, out: Array) -> None:
        """A copy of the centre as it passes by."""
        raise NotImplementedError

    def place(self) -> int:
        """How many samples the workers have claimed for themselves."""
        return 0

    def handle(self, sender: int, message: FromWorker) -> bool:
        """Whether a worker's message was for the centre; then it has been dealt with."""
        return False

    def trained(self, worker: int, samples: int) -> None:
        """A worker has trained on this many samples, the first of those that it has claimed; its next move has them."""

    def untrained(self) -> list[Work] | None:
        """What workers have claimed and no move has, where that is known."""
        return None

    def serve(self) -> bool:
        """Go on with what workers have asked for; whether anything moved."""
        return False

    # ---- both

    def close(self) -> None:
        """Collective, at a clean end."""
