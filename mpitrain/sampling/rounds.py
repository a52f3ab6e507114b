"""The order in which examples pass through the fully connected layers: schemes a, b, c of Krizhevsky 2014, §4.

A minibatch of `count` examples is divided over `ranks` ranks; rank k holds [k·count // ranks, (k+1)·count // ranks). In
a round, some ranks send a piece of their examples to all; the pieces of all rounds together are the whole minibatch.
"""

from collections.abc import Iterator
from typing import NamedTuple

from mpitrain.flat import share


class ExampleRange(NamedTuple):
    """Examples [start, stop) of the minibatch, at least one, which `rank` holds and sends."""

    rank: int
    start: int
    stop: int

    @property
    def examples(self) -> int:
        """Number of examples."""
        return self.stop - self.start


class FullyConnectedRound(NamedTuple):
    """One pass through the fully connected layers, with the examples of these pieces, ordered by rank."""

    number: int
    pieces: tuple[ExampleRange, ...]

    @property
    def examples(self) -> int:
        """Number of examples."""
        return sum(piece.examples for piece in self.pieces)

    def piece_of(self, rank: int) -> ExampleRange | None:
        """The piece that `rank` sends, if any."""
        return next((piece for piece in self.pieces if piece.rank == rank), None)


def rounds(scheme: str, ranks: int, count: int, group: int = 0) -> Iterator[FullyConnectedRound]:
    """The rounds of one minibatch, numbered from 0; rounds without examples are omitted.

    a: one round, in which every rank sends all its examples. b: rank r sends all its examples in round r. c: in each of
    `ranks` rounds, every rank sends 1/`ranks` of its examples. With `group`, the ranks of scheme c take turns in groups
    of that size (the last may be smaller): a group of g has g rounds, in each of which its ranks send 1/g of their
    examples. Groups of 1 are scheme b, one group of all ranks is c.
    """
    number, size = 0, {"a": ranks, "b": 1, "c": min(group, ranks) or ranks}[scheme]
    for first in range(0, ranks, size):
        members = range(first, min(first + size, ranks))
        turns = 1 if scheme == "a" else len(members)
        for turn in range(turns):
            sent = ((rank, _turn(turn, (rank - first) % turns, turns, share(count, rank, ranks))) for rank in members)
            pieces = tuple(ExampleRange(rank, own.start, own.stop) for rank, own in sent if own.start < own.stop)
            if pieces:
                yield FullyConnectedRound(number, pieces)
                number += 1


def _turn(turn: int, place: int, turns: int, own: slice) -> slice:
    """The examples that a member sends in one turn; sizes differ by at most one.

    `place`, which differs among the members, says in which turns a member sends its larger pieces, so that turns are
    equal: by Hermite's identity, Σ_i ⌊(m + i)/s⌋ over i = 0 … s−1 is m, so members with n examples each send n a turn.
    """
    size = own.stop - own.start
    return slice(own.start + (turn * size + place) // turns, own.start + ((turn + 1) * size + place) // turns)
