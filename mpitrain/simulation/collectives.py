"""Nonblocking collectives of simulated ranks: each ends for all of them once the last has come, and the messages' time.

Sums are added in the order of MPICH's recursive doubling: ranks beyond the greatest power of two are first added to a
neighbour, then pairs of neighbours, then pairs of pairs. So their bits are those of MPICH on as many ranks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from mpitrain.flat import Array
from mpitrain.mpi.launcher import MPI
from mpitrain.simulation.messages import Request


def ufunc(operation: MPI.Op) -> np.ufunc:
    """What an operation does to two arrays."""
    for known, does in ((MPI.SUM, np.add), (MPI.MAX, np.maximum)):
        if operation == known:
            return does
    raise ValueError(f"{operation} is not simulated")


@dataclass
class Part:
    """One rank's part in a collective: what it gives, and where its result goes."""

    give: Array | None
    take: Sequence[Array]
    request: Request


@dataclass
class Collective:
    """One collective of a communicator: a call of each of its ranks. `carry_out` gets all parts, by rank."""

    kind: str
    size: int
    carry_out: Callable[[list[Part]], None]
    parts: dict[int, Part] = field(default_factory=dict)

    def join(self, rank: int, kind: str, part: Part) -> bool:
        """A rank has come; whether it is the last. Raises RuntimeError if it has called another collective."""
        if kind != self.kind:
            raise RuntimeError(f"rank {rank} calls {kind} where others have called {self.kind}")
        self.parts[rank] = part
        return len(self.parts) == self.size

    @property
    def nbytes(self) -> int:
        """Bytes that the greatest part moves."""
        return max(
            max(part.give.nbytes if part.give is not None else 0, sum(each.nbytes for each in part.take))
            for part in self.parts.values()
        )

    def end(self) -> None:
        """Give the ranks their results."""
        self.carry_out([self.parts[rank] for rank in range(self.size)])
        for part in self.parts.values():
            part.request.complete()


def reduced(terms: Sequence[Array], operation: MPI.Op) -> Array:
    """The terms combined, in MPICH's order."""
    combine = ufunc(operation)
    power = 1 << (len(terms).bit_length() - 1)
    beyond = len(terms) - power
    level = [combine(terms[2 * i], terms[2 * i + 1]) for i in range(beyond)] + list(terms[2 * beyond :])
    while len(level) > 1:
        level = [combine(level[i], level[i + 1]) for i in range(0, len(level), 2)]
    return level[0]


def barrier(parts: list[Part]) -> None:
    """Nothing is moved."""


def broadcast(root: int) -> Callable[[list[Part]], None]:
    """The root's array to all."""

    def carry_out(parts: list[Part]) -> None:
        for rank, part in enumerate(parts):
            if rank != root:
                np.copyto(part.take[0], parts[root].take[0])

    return carry_out


def reduce(operation: MPI.Op) -> Callable[[list[Part]], None]:
    """The terms combined, for those that take the result; one that gives None gives what it has where it takes."""

    def carry_out(parts: list[Part]) -> None:
        result = reduced([part.take[0] if part.give is None else part.give for part in parts], operation)
        for part in parts:
            for place in part.take:
                np.copyto(place, result)

    return carry_out


def reduce_scatter(counts: Sequence[int]) -> Callable[[list[Part]], None]:
    """The sum of the terms, to each rank its piece."""

    def carry_out(parts: list[Part]) -> None:
        result = reduced([part.give for part in parts], MPI.SUM)
        for part, piece in zip(parts, np.split(result, np.cumsum(counts)[:-1]), strict=True):
            np.copyto(part.take[0], piece)

    return carry_out


def gather(counts: Sequence[int]) -> Callable[[list[Part]], None]:
    """Each rank's piece, so many elements, to all; one that gives None has its own in place."""

    def carry_out(parts: list[Part]) -> None:
        ends = np.cumsum(counts)
        given = [
            part.take[0][end - count : end] if part.give is None else part.give
            for part, end, count in zip(parts, ends, counts, strict=True)
        ]
        whole = np.concatenate(given)
        for part in parts:
            np.copyto(part.take[0], whole)

    return carry_out
