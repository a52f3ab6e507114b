"""The arithmetic of the roles in an algorithm: a worker, and a master that computes. They send no messages.

All methods work on any slice of the flat vectors: on cache blocks, on shares of a centre, on a GPU, in a simulation.
An optimizer makes the local step within them.
"""

from typing import ClassVar, NamedTuple

from mpitrain.algorithms.optimizers import Buffers, Descent
from mpitrain.flat import Array


class WorkerRule:
    """A worker's arithmetic between its own vectors and a centre: exchanges, and steps between them.

    `vectors` are the vectors that a checkpoint holds, by name; `local` is x with the optimizer of the local step.
    """

    vectors: Buffers
    local: Descent
    #: In round-robin order a worker's turn holds its steps, too, and ends with what they add to the centre. Otherwise
    #: a turn is the exchange alone: the workers compute at the same time, and the next exchange carries what they add.
    whole_turns: ClassVar[bool] = False

    @property
    def at(self) -> Array:
        """The point where the next gradient is taken."""
        return self.local.at

    def begin(self, eta: float, workers: int) -> None:
        """Begin an exchange at the learning rate `eta`, in which `workers` workers take part."""

    def exchange(self, piece: slice, centre: Array, t: int) -> Array:
        """Exchange a piece at local time t; returns what is added to the centre, unchanged until the next exchange."""
        raise NotImplementedError

    def step(self, part: slice, g: Array, eta: float, t: int, first: bool) -> None:
        """Take a step on a slice, whose gradient is `g`; `first`: it is the first one after an exchange."""
        raise NotImplementedError

    def pending(self, piece: slice) -> Array | None:
        """What has to be added to the centre at the end of the training; None for nothing."""
        return None

    def restart(self, piece: slice, centre: Array) -> None:
        """Start again from the centre, with buffers as at the start of a training."""
        self.local.restart(piece, centre)


class Largest(NamedTuple):
    """What ranks send every `tau` steps where they do not average whole vectors.

    Of each `chunk` elements the `top_k` largest are sent, in `bits` bits each. What is not sent stays in the vector
    "error", multiplied by `decay` at every round.
    """

    tau: int
    top_k: int
    chunk: int
    bits: int
    decay: float


class AveragingRule(WorkerRule):
    """A worker's arithmetic if all ranks hold the centre and exchange at the same step, by sums over the ranks.

    `overlaps`: an exchange begins before a step and overlaps with the computation of the gradient. Otherwise it follows
    the step, and there is one after the last step of the training, too.
    """

    overlaps: ClassVar[bool] = False
    largest: Largest | None = None
    #: The step from which periods are counted: where a training has been lengthened, after the exchange at its end.
    began = 0

    def due(self, t: int) -> bool:
        """Whether there is an exchange at step t."""
        raise NotImplementedError

    def shorten(self, steps: int) -> None:
        """Prepare the last exchange of the training, which follows only `steps` steps, fewer than the others."""

    @property
    def summed(self) -> list[Array]:
        """The vectors that an exchange sums over the ranks, in place."""
        raise NotImplementedError

    def offer(self, b: slice, centre: Array, t: int) -> None:
        """Fill a block of `summed` before it is summed; `centre` is the same block of the centre."""

    def take(self, b: slice, vectors: Buffers, ranks: int) -> None:
        """Move a block of the centre, which is in `vectors`, after the block has been summed over `ranks` ranks."""
        raise NotImplementedError


class Merge(NamedTuple):
    """What a master's arithmetic may depend on when it merges a delta."""

    eta: float  # the stage's learning rate η
    stale: int  # updates since the Θ from which the worker began
    t: int  # the master's own time: its updates so far
    momentum: float | None = None  # the stage's momentum; None: the algorithm's own
    highest: float = 0.0  # the highest learning rate of all stages
    began: int = 0  # the time t at which the vectors beside Θ had their initial values
    workers: int = 1
    share: float = 1.0  # the delta's share of a whole round's samples


class RoundRule:
    """A worker's arithmetic between a pull and a push: it pulls Θ into `local.x`, steps, and pushes one vector."""

    local: Descent

    def target(self, gradient: Array, first: bool) -> Array:
        """Where the round's next gradient goes: `gradient`, or the pushed vector itself."""
        raise NotImplementedError

    def begin(self) -> None:
        """Begin a round; Θ is in `local.x`."""

    def step(self, b: slice, g: Array, eta: float, first: bool, last: bool) -> None:
        """Take a step on a block, whose gradient is `g`; after the last one, the block can be pushed."""
        raise NotImplementedError

    def stepped(self) -> None:
        """A step has been taken on all blocks."""

    def end(self) -> None:
        """End the round after a step that was not known to be the last, so that `last` was false."""


class MasterRule:
    """The arithmetic of a master that computes with what workers send."""

    def merge(self, vectors: Buffers, delta: Array, scratch: Array, at: Merge) -> None:
        """Apply a worker's `delta`. All slices have the same length."""
        raise NotImplementedError
