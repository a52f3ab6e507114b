"""The interface of methods: what an algorithm does around a user's own steps; and MPI while the user's code runs."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import numpy as np

from mpitrain.algorithms.interface import Algorithm
from mpitrain.algorithms.optimizers import Buffers, Fast, Optimizer, OptimizerOptions
from mpitrain.api.loop.loader import Dealt
from mpitrain.api.loop.module import FlatModule
from mpitrain.api.loop.past import Apply, Past
from mpitrain.checkpoint.state import Numbers, Vectors
from mpitrain.errors import BadInput, TrainingFailed, named, say
from mpitrain.flat import Array
from mpitrain.mpi import MPI, Transport
from mpitrain.mpi.heartbeats import BEATS
from mpitrain.mpi.messages import ENTER_MPI

COMPARED = -1.0  # in place of checksums
ROUNDING = 1e-6  # relative: what two machines may make of one formula


class Attendance:
    """A thread that calls MPI in place of the user's code; within this context the rank calls MPI itself.

    While `busy`, `progress` is called every few milliseconds: a sum is in progress, or others use this rank's window.
    Raises BadInput where MPI does not allow calls from two threads.
    """

    def __init__(self, transport: Transport) -> None:
        if transport.size > 1 and MPI.Query_thread() < MPI.THREAD_SERIALIZED:
            raise BadInput("MPI: was started without MPI_THREAD_SERIALIZED, which the thread of the heartbeats needs")
        self._transport, self._depth = transport, 0
        self.busy = False
        self.progress: Callable[[], object] = lambda: None
        self._user: AbstractContextManager[object] | None = None

    def __enter__(self) -> None:
        self._depth += 1
        user, self._user = self._user, None
        if user is not None:
            user.__exit__(None, None, None)

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0 and self._transport.size > 1:
            step = ENTER_MPI if self.busy else self._transport.deadline / BEATS / 2
            self._user = self._transport.runtime.working(self._beat, step)
            self._user.__enter__()

    def _beat(self) -> None:
        if self.busy:
            self._transport.comm.Iprobe()
            self.progress()
        self._transport.heartbeat()


class Method:
    """Its methods are called around each batch, in this order: `before` the batch is handed out; `before_step`, before
    each step of the user's optimizer, if any; `after` the user is done with the batch; and at last `finish`.

    In all but `before_step` this rank may call MPI. `t` counts batches.
    """

    #: Whether all ranks are always at the same batch.
    in_step: bool = True
    #: Whether it keeps a model beside this rank's parameters, which a change of these by other means would not reach.
    apart: bool = True
    #: Whether the user only adds up gradients now.
    accumulating: bool = False

    def __init__(self, transport: Transport, flat: FlatModule, attendance: Attendance, algorithm: Algorithm) -> None:
        self.transport, self.flat, self.attendance, self.algorithm = transport, flat, attendance, algorithm
        self.ranks, self.roll = transport.size, Roll(transport)
        self.begin()

    def begin(self) -> None:
        """Set up what is needed, and bind the user's parameters. Collective."""

    def before(self, t: int, batch: Dealt) -> None:
        """Prepare for a batch that is about to be handed out."""

    def before_step(self) -> None:
        """Prepare for a step of the user's optimizer."""

    def after(self, t: int) -> None:
        """End a batch: the user asks for the next one, or has left the loop."""

    def finish(self, t: int) -> None:
        """End the training after t batches. Collective."""

    def close(self) -> None:
        """Free what the ranks hold together. Collective."""

    def release(self) -> None:
        """Free what the method holds; the block has ended, in whatever way."""

    def model(self) -> Array:
        """The parameters that are evaluated and kept."""
        return self.flat.x

    def require_finite(self) -> None:
        """Raise TrainingFailed naming this rank, unless its parameters are finite."""
        if not self.flat.finite:
            raise TrainingFailed(f"rank {self.transport.rank}: the parameters are not finite")

    def leave(self, t: int) -> None:
        """End the loop with the others, after t batches of this rank's. Where they took other numbers, that is said;
        BadInput everywhere where all are to be at the same batch."""
        counts = self.roll.call(t, "the end of the loop", Told(leaving=True, counted=t))
        if min(counts) < max(counts):
            line = f"the ranks took {', '.join(map(str, counts))} batches: one left the loop early"
            if self.in_step:
                self.roll.refuse(line, [counts.index(min(counts))])
            if self.transport.rank == 0:
                say(f"warning: {line}")

    # ---- saves, between two batches

    def settle(self) -> None:
        """Complete what is in progress, so that the state can be saved. Collective. Raises BadInput on all ranks."""

    def keep(self) -> tuple[Vectors, Numbers]:
        """This rank's vectors and numbers, until the next batch."""
        return {"x": self.flat.x}, {}

    def take_up(self, past: Past) -> Apply:
        """Read a save; returns a function that applies it, collectively. Raises BadInput or ValueError naming what does
        not fit."""
        x = past.vector("x", self.flat.x)
        return lambda: np.copyto(self.flat.x, x)


class Told(NamedTuple):
    """What a rank says of itself at a roll: whether it leaves, whether its parameters are not finite, in how many sums
    of gradients it has taken part, what it has counted, its learning rate, if all ranks are to have the same, and a
    checksum of what all are to have read alike."""

    leaving: bool = False
    unfit: bool = False
    sums: int = 0
    counted: int = 0
    rate: float = 0.0
    read: float = 0.0


class Roll:
    """A check before what the ranks do together: whether all take part; if some have left, all ranks learn which."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._told = np.zeros((transport.size, len(Told._fields)))
        self.read = 0.0  # above 0: a checksum of what this rank has read first

    def start(self, told: Told) -> None:
        """Say what the others are to know of this rank."""
        self._told[:] = 0
        self._told[self._transport.rank] = np.array(told._replace(read=self.read))
        self._request = self._transport.start_sum(self._told)

    def end(self, t: int, what: str) -> list[int]:
        """Wait for `what` after t batches; returns what each rank has counted. Raises BadInput on all ranks if some are
        not finite, some have taken part in fewer sums than others, some leave and others do not, or some have another
        learning rate."""
        self._transport.wait(self._request, what)
        leaving, unfit_here, sums, counts, rates, read = self._told.T
        self._compare(read)
        left, unfit = np.flatnonzero(leaving).tolist(), np.flatnonzero(unfit_here).tolist()
        if unfit:
            self.refuse(f"{named(unfit)}: the parameters are not finite after {t} batches", unfit)
        if fewer := np.flatnonzero(sums < sums.max()).tolist():
            line = f"{named(fewer)} called backward less often than the others: all sum each gradient"
            self.refuse(line, fewer)
        if 0 < len(left) < self._transport.size:
            others = [rank for rank in range(self._transport.size) if rank not in left]
            line = f"{named(left)} left the loop after {t} batches, and {named(others)} did not: all take as many"
            self.refuse(line, left)
        if odd := np.flatnonzero(abs(rates - rates[0]) > ROUNDING * abs(rates[0])).tolist():
            line = f"{named(odd)}: the learning rate is {rates[odd[0]]:g}, rank 0's {rates[0]:g}, after {t} batches"
            self.refuse(f"{line}: all are to have the same; give a scheduler that follows a metric its ranks.mean", odd)
        return [int(count) for count in counts]

    def _compare(self, read: Array) -> None:
        """Say so, once all ranks have read a round of batches, if some have read other ones than rank 0."""
        if (read > 0).all():
            self.read = COMPARED
            if (odd := np.flatnonzero(read != read[0]).tolist()) and self._transport.rank == 0:
                line = f"ranks.share: {named(odd)} read other first batches than rank 0"
                then = "unless only an augmentation differs, some samples come twice, others never"
                say(f"warning: {line}: {then}; seed what draws, divides or orders them, alike on all ranks")

    def call(self, t: int, what: str, told: Told) -> list[int]:
        """`start`, and `end`."""
        self.start(told)
        return self.end(t, what)

    def refuse(self, line: str, whom: Sequence[int]) -> None:
        """Raise BadInput, as every rank does; the first of `whom` is to print it."""
        raise BadInput.known(line, spoken_here=self._transport.rank == whom[0])


class TheirStep(Optimizer):
    """An optimizer that does nothing: the user's own takes the step."""

    def step(self, x: Array, g: Array, buffers: Buffers, scratch: Array, *, lr: float, t: int) -> None:
        pass


class TheirOptimizer(OptimizerOptions, frozen=True):
    """The options of `TheirStep`, in place of [algorithm.optimizer]."""

    def make(self, fast: Fast) -> Optimizer:
        return TheirStep()
