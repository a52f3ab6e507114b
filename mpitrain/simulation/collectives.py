"""Nonblocking collectives of simulated ranks.

Their messages begin when the last rank has come, and pass the nodes' cards like any others, so that they delay each
other.

Sums are added in the order of MPICH's recursive doubling: ranks beyond the greatest power of two are first added to a
neighbour, then pairs of neighbours, then pairs of pairs. So their bits are those of MPICH on as many ranks.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from mpitrain.flat import Array
from mpitrain.mpi.collectives import reduced
from mpitrain.mpi.launcher import MPI
from mpitrain.simulation.messages import SimulatedRequest
from mpitrain.simulation.network import Wires
from mpitrain.simulation.rounds import Round

NOBODY = -1
KEPT = 32  # collectives whose steps are remembered: of a thousand ranks, some megabytes each


class MessageStep(NamedTuple):
    """What a rank does in a round: send this many bytes to a place, and take a message, or only one of both."""

    number: int
    to: int
    nbytes: int
    takes: bool


Steps = Sequence[Sequence[MessageStep]]


def steps_of(rounds: Iterable[Round], ranks: int) -> Steps:
    """The steps of each rank; rounds in which one has nothing to do are none of its own."""
    steps: list[list[MessageStep]] = [[] for _ in range(ranks)]
    for number, messages in enumerate(rounds):
        sends = {source: (target, nbytes) for source, target, nbytes in messages}
        takes = {target for _, target, _ in messages}
        for rank in sorted(sends.keys() | takes):
            steps[rank].append(MessageStep(number, *sends.get(rank, (NOBODY, 0)), rank in takes))
    return steps


def ufunc(operation: MPI.Op) -> np.ufunc:
    """What an operation does to two arrays."""
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


@lru_cache(maxsize=KEPT)
def _steps(what: Callable[..., Iterator[Round]], *arguments: object, nodes: tuple[int, ...], nbytes: int) -> Steps:
    return steps_of(what(*arguments, nodes, nbytes), len(nodes))


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
        return _steps(self.rounds, *self.arguments, nodes=nodes, nbytes=nbytes)

    def end(self, rank: int) -> None:
        """It has ended for one."""
        self.parts[rank].request.complete()


def nothing(parts: list[CollectivePart]) -> None:
    """Of a barrier."""


def broadcast(parts: list[CollectivePart], root: int) -> None:
    """The root's array to all."""
    for rank, part in enumerate(parts):
        if rank != root:
            np.copyto(part.take[0], parts[root].take[0])


def combine(parts: list[CollectivePart], operation: MPI.Op) -> None:
    """The terms combined, for those that take the result; one that gives None gives what it has where it takes."""
    result = reduced([part.take[0] if part.give is None else part.give for part in parts], ufunc(operation))
    for part in parts:
        for place in part.take:
            np.copyto(place, result)


def scatter(parts: list[CollectivePart], counts: Sequence[int]) -> None:
    """The sum of the terms, to each rank its piece, of this many elements."""
    result = reduced([part.give for part in parts], np.add)
    for part, piece in zip(parts, np.split(result, np.cumsum(counts)[:-1]), strict=True):
        np.copyto(part.take[0], piece)


def gather(parts: list[CollectivePart], counts: Sequence[int]) -> None:
    """Each rank's piece, of this many elements, to all; one that gives None has its own in place."""
    pieces = zip(parts, np.cumsum(counts), counts, strict=True)
    given = [part.take[0][end - count : end] if part.give is None else part.give for part, end, count in pieces]
    whole = np.concatenate(given)
    for part in parts:
        np.copyto(part.take[0], whole)


class Course:
    """One collective under way. It needs no turns of the ranks: only events, one for all steps that begin at a time.
    `ended(place)` is called when a rank's last step is done."""

    def __init__(self, wires: Wires, members: Sequence[int], steps: Steps, ended: Callable[[int], None]) -> None:
        self._scheduler, self._wires, self._members, self._ended = wires.scheduler, wires, members, ended
        self._left = [iter(each) for each in steps]
        self._came: dict[tuple[int, int], float] = {}  # by round and place: when a message will be there
        self._waits: dict[tuple[int, int], float] = {}  # by round and place: until when it sends itself
        self._begins: dict[float, list[int]] = {}
        for place in range(len(members)):
            self._begin(wires.scheduler.now + wires.jitter(), place)

    def _begin(self, time: float, place: int) -> None:
        """A rank's next step begins then."""
        if time in self._begins:
            self._begins[time].append(place)
        else:
            self._begins[time] = [place]
            self._scheduler.at(time, lambda: self._turn(time))

    def _turn(self, time: float) -> None:
        for place in self._begins.pop(time):
            step = next(self._left[place], None)
            if step is None:
                self._ended(place)
            else:
                self._take(step, place, self._send(step, place) if step.to != NOBODY else time)

    def _send(self, step: MessageStep, place: int) -> float:
        """When the message has left."""
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
