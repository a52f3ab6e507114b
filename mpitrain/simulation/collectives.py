"""Nonblocking collectives of simulated ranks.

Their messages begin when the last rank has come, and pass the nodes' cards like any others, so that they delay each
other.

Sums are added in the order of MPICH's recursive doubling: ranks beyond the greatest power of two are first added to a
neighbour, then pairs of neighbours, then pairs of pairs. So their bits are those of MPICH on as many ranks.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from mpitrain.flat import Array
from mpitrain.mpi.collectives import reduced
from mpitrain.mpi.launcher import MPI
from mpitrain.simulation.messages import SimulatedRequest, Wires
from mpitrain.simulation.rounds import Round

NOBODY = -1
KEPT = 32  # collectives whose steps are remembered: of a thousand ranks, some megabytes each


class MessageStep(NamedTuple):
    """What a rank does in a round: send `nbytes` bytes to rank `to` (NOBODY: none), and if `takes`, take a message."""

    number: int
    to: int
    nbytes: int
    takes: bool


Steps = Sequence[Sequence[MessageStep]]


@lru_cache(maxsize=KEPT)
def steps_of(what: Callable[..., Iterator[Round]], *arguments: object, nodes: tuple[int, ...], nbytes: int) -> Steps:
    """The steps of each rank, without the rounds in which it has nothing to do."""
    steps: list[list[MessageStep]] = [[] for _ in nodes]
    for number, messages in enumerate(what(*arguments, nodes, nbytes)):
        sends = {source: (target, nbytes) for source, target, nbytes in messages}
        takes = {target for _, target, _ in messages}
        for rank in sorted(sends.keys() | takes):
            steps[rank].append(MessageStep(number, *sends.get(rank, (NOBODY, 0)), rank in takes))
    return steps


def ufunc(operation: MPI.Op) -> np.ufunc:
    """The NumPy function of an MPI operation. Raises ValueError for one that is not simulated."""
    for known, does in ((MPI.SUM, np.add), (MPI.MAX, np.maximum)):
        if operation == known:
            return does
    raise ValueError(f"{operation} is not simulated")


@dataclass
class CollectivePart:
    """One rank's part in a collective: what it gives, and where its result goes."""

    give: Array | None
    take: Sequence[Array]
    request: SimulatedRequest


@dataclass(frozen=True)
class Collective:
    """One collective of a communicator: a call of each of its ranks, whose `parts` are here once they have come.

    `carry_out` gets all parts, by rank, and puts the results where they will be looked for; `rounds` says what is sent,
    given `arguments`, the nodes of the ranks, and the bytes of the greatest part.
    """

    name: str
    carry_out: Callable[[list[CollectivePart]], None]
    rounds: Callable[..., Iterator[Round]]
    arguments: tuple[int | tuple[int, ...], ...] = ()
    parts: dict[int, CollectivePart] = field(default_factory=dict)

    def steps(self, nodes: tuple[int, ...]) -> Steps:
        """What each rank sends and takes, now that all have come and all is done but the messages."""
        self.carry_out([self.parts[rank] for rank in range(len(nodes))])
        nbytes = max(
            max(part.give.nbytes if part.give is not None else 0, sum(each.nbytes for each in part.take))
            for part in self.parts.values()
        )
        return steps_of(self.rounds, *self.arguments, nodes=nodes, nbytes=nbytes)


def nothing(parts: list[CollectivePart]) -> None:
    """A barrier: no data."""


def broadcast(parts: list[CollectivePart], root: int) -> None:
    """Copy the root's array to all ranks."""
    for rank, part in enumerate(parts):
        if rank != root:
            np.copyto(part.take[0], parts[root].take[0])


def combine(parts: list[CollectivePart], operation: MPI.Op) -> None:
    """Combine the terms, for the ranks that take the result. A rank that gives None has its term where it takes."""
    result = reduced([part.take[0] if part.give is None else part.give for part in parts], ufunc(operation))
    for part in parts:
        for place in part.take:
            np.copyto(place, result)


def scatter(parts: list[CollectivePart], counts: Sequence[int]) -> None:
    """Sum the terms, and give each rank its piece of the sum, `counts` elements long."""
    result = reduced([part.give for part in parts], np.add)
    for part, piece in zip(parts, np.split(result, np.cumsum(counts)[:-1]), strict=True):
        np.copyto(part.take[0], piece)


def gather(parts: list[CollectivePart], counts: Sequence[int]) -> None:
    """Give all ranks' pieces, `counts` elements long, to all. A rank that gives None has its piece in place."""
    pieces = zip(parts, np.cumsum(counts), counts, strict=True)
    given = [part.take[0][end - count : end] if part.give is None else part.give for part, end, count in pieces]
    whole = np.concatenate(given)
    for part in parts:
        np.copyto(part.take[0], whole)


class Course:
    """One collective in progress. It needs no turns of the ranks, only one event for all steps that begin at the same
    time. A rank's request is completed when its last step is done."""

    def __init__(self, wires: Wires, members: Sequence[int], nodes: tuple[int, ...], collective: Collective) -> None:
        self._scheduler, self._wires, self._members, self._parts = wires.scheduler, wires, members, collective.parts
        self._left = [iter(each) for each in collective.steps(nodes)]
        self._came: dict[tuple[int, int], float] = {}  # by round and place: when a message will be there
        self._waits: dict[tuple[int, int], float] = {}  # by round and place: until when it sends itself
        self._begins: dict[float, list[int]] = {}
        for place in range(len(members)):
            self._begin(wires.scheduler.now + wires.jitter(), place)

    def _begin(self, time: float, place: int) -> None:
        """Have a rank's next step begin at a time."""
        if time in self._begins:
            self._begins[time].append(place)
        else:
            self._begins[time] = [place]
            self._scheduler.at(time, lambda: self._turn(time))

    def _turn(self, time: float) -> None:
        for place in self._begins.pop(time):
            step = next(self._left[place], None)
            if step is None:
                self._parts[place].request.complete()
            else:
                self._take(step, place, self._send(step, place) if step.to != NOBODY else time)

    def _send(self, step: MessageStep, place: int) -> float:
        """Send a step's message; returns when it has left."""
        to = (step.number, step.to)
        left, arrival = self._wires.passage(
            self._scheduler.now, step.nbytes, self._members[place], self._members[step.to]
        )
        if to in self._waits:
            self._begin(max(self._waits.pop(to), arrival), step.to)
        else:
            self._came[to] = arrival
        return left

    def _take(self, step: MessageStep, place: int, left: float) -> None:
        """Go on when what is sent has left, and what is awaited is there."""
        here = (step.number, place)
        if not step.takes:
            self._begin(left, place)
        elif here in self._came:
            self._begin(max(left, self._came.pop(here)), place)
        else:
            self._waits[here] = left
