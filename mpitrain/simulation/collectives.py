"""Nonblocking collectives of simulated ranks: their messages begin when the last has come.

Sums are added in the order of MPICH's recursive doubling: ranks beyond the greatest power of two are first added to a
neighbour, then pairs of neighbours, then pairs of pairs. So their bits are those of MPICH on as many ranks.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from mpitrain.flat import Array
from mpitrain.mpi.launcher import MPI
from mpitrain.simulation import rounds
from mpitrain.simulation.course import Steps, steps_of
from mpitrain.simulation.messages import SimulatedRequest
from mpitrain.simulation.rounds import Round

KEPT = 32  # collectives whose steps are remembered: of a thousand ranks, some megabytes each


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


@dataclass(frozen=True)
class CollectiveAlgorithm:
    """What a collective does. `carry_out` gets all parts, by rank; `rounds` says what is sent, given `arguments`, the
    nodes of the ranks, and the bytes of the greatest part."""

    name: str
    carry_out: Callable[[list[CollectivePart]], None]
    rounds: Callable[..., Iterator[Round]]
    arguments: tuple[int | tuple[int, ...], ...] = ()


@lru_cache(maxsize=KEPT)
def _steps(what: Callable[..., Iterator[Round]], *arguments: object, nodes: tuple[int, ...], nbytes: int) -> Steps:
    return steps_of(what(*arguments, nodes, nbytes), len(nodes))


@dataclass
class Collective:
    """One collective of a communicator: a call of each of its ranks."""

    operation: CollectiveAlgorithm
    size: int
    parts: dict[int, CollectivePart] = field(default_factory=dict)

    def join(self, rank: int, operation: CollectiveAlgorithm, part: CollectivePart) -> bool:
        """A rank has come; whether it is the last. Raises RuntimeError if it has called another collective."""
        if operation.name != self.operation.name:
            raise RuntimeError(f"rank {rank} calls {operation.name} where others have called {self.operation.name}")
        self.parts[rank] = part
        return len(self.parts) == self.size

    def steps(self, nodes: tuple[int, ...]) -> Steps:
        """What each rank sends and takes."""
        nbytes = max(
            max(part.give.nbytes if part.give is not None else 0, sum(each.nbytes for each in part.take))
            for part in self.parts.values()
        )
        return _steps(self.operation.rounds, *self.operation.arguments, nodes=nodes, nbytes=nbytes)

    def carry_out(self) -> None:
        """Put the ranks' results where they will be looked for when the messages are there."""
        self.operation.carry_out([self.parts[rank] for rank in range(self.size)])

    def end(self, rank: int) -> None:
        """It has ended for one."""
        self.parts[rank].request.complete()


def reduced(terms: Sequence[Array], operation: MPI.Op) -> Array:
    """The terms combined, in MPICH's order."""
    combine = ufunc(operation)
    power = 1 << (len(terms).bit_length() - 1)
    beyond = len(terms) - power
    level = [combine(terms[2 * i], terms[2 * i + 1]) for i in range(beyond)] + list(terms[2 * beyond :])
    while len(level) > 1:
        level = [combine(level[i], level[i + 1]) for i in range(0, len(level), 2)]
    return level[0]


def barrier(name: str = "Ibarrier") -> CollectiveAlgorithm:
    """Nothing is moved."""
    return CollectiveAlgorithm(name, lambda parts: None, rounds.barrier)


def broadcast(root: int) -> CollectiveAlgorithm:
    """The root's array to all."""

    def carry_out(parts: list[CollectivePart]) -> None:
        for rank, part in enumerate(parts):
            if rank != root:
                np.copyto(part.take[0], parts[root].take[0])

    return CollectiveAlgorithm("Ibcast", carry_out, rounds.broadcast, (root,))


def reduce(root: int, operation: MPI.Op) -> CollectiveAlgorithm:
    """The terms combined, for the root."""
    return CollectiveAlgorithm("Ireduce", _combine(operation), rounds.reduce, (root,))


def allreduce(operation: MPI.Op) -> CollectiveAlgorithm:
    """The terms combined, for all."""
    return CollectiveAlgorithm("Iallreduce", _combine(operation), rounds.allreduce)


def _combine(operation: MPI.Op) -> Callable[[list[CollectivePart]], None]:
    """For those that take the result; one that gives None gives what it has where it takes."""

    def carry_out(parts: list[CollectivePart]) -> None:
        result = reduced([part.take[0] if part.give is None else part.give for part in parts], operation)
        for part in parts:
            for place in part.take:
                np.copyto(place, result)

    return carry_out


def reduce_scatter(counts: Sequence[int]) -> CollectiveAlgorithm:
    """The sum of the terms, to each rank its piece."""

    def carry_out(parts: list[CollectivePart]) -> None:
        result = reduced([part.give for part in parts], MPI.SUM)
        for part, piece in zip(parts, np.split(result, np.cumsum(counts)[:-1]), strict=True):
            np.copyto(part.take[0], piece)

    return CollectiveAlgorithm("Ireduce_scatter", carry_out, rounds.reduce_scatter, (tuple(counts),))


def gather(name: str, counts: Sequence[int]) -> CollectiveAlgorithm:
    """Each rank's piece, so many elements, to all; one that gives None has its own in place."""

    def carry_out(parts: list[CollectivePart]) -> None:
        ends = np.cumsum(counts)
        given = [
            part.take[0][end - count : end] if part.give is None else part.give
            for part, end, count in zip(parts, ends, counts, strict=True)
        ]
        whole = np.concatenate(given)
        for part in parts:
            np.copyto(part.take[0], whole)

    return CollectiveAlgorithm(name, carry_out, rounds.gather, (tuple(counts),))
