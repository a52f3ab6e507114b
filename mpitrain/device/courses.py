"""Collectives on arrays in GPU memory, made of messages that a CUDA-aware MPI takes from there.

All MPI libraries that take device memory take it in messages; in nonblocking collectives few do, and a blocking one
waits without a deadline. Here every rank has a share of the elements. It gets the others' terms of its share, adds them
up, and hands the sum to those who want it, so that a sum over K ranks of n elements costs each 2(K−1)/K·n, received
and sent. The sum of an element is made by one rank: all get the same bits.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mpitrain.flat import Array
from mpitrain.models.partition import units_of
from mpitrain.mpi.tags import Tag

if TYPE_CHECKING:
    from mpitrain.device.collectives import StagedTransport
    from mpitrain.device.gpu import Gpu
    from mpitrain.mpi import Transport

#: Each collective has two of these tags, one for each of its steps, so that it meets no other's messages.
TAGS = 1 << 14
Steps = Iterator[list[Any]]


class Course:
    """A collective as an operation of `queue`: its steps yield what has to be over before the next one."""

    def __init__(self, queue: "StagedTransport", steps: Steps) -> None:
        self._queue, self._steps, self.done = queue, steps, False
        self._pending = next(steps)

    def Test(self) -> bool:  # as MPI's requests have it
        """Whether the result is there for kernels launched from now on."""
        self._queue.advance()
        return self.done

    def started(self) -> bool:
        """Always: unlike MPI's collectives, these may start in any order."""
        return True

    def finished(self) -> bool:
        """Go on as far as possible; whether it is over."""
        while not self.done:
            self._pending = [each for each in self._pending if not each.Test()]
            if self._pending:
                break
            try:
                self._pending = next(self._steps)
            except StopIteration:
                self.done = True
        return self.done


@dataclass(frozen=True)
class Mark:
    """A place in a stream, with the face of a request."""

    event: Any

    def Test(self) -> bool:  # as MPI's requests have it
        """Whether the stream has come here."""
        return bool(self.event.done)


class Courses:
    """What the collectives of one transport with several ranks consist of. Arrays are flat."""

    def __init__(self, transport: "Transport", device: "Gpu") -> None:
        self._transport, self._device = transport, device
        self._rank, self._ranks = transport.rank, range(transport.size)
        self._others = [rank for rank in self._ranks if rank != self._rank]
        self._rooms: dict[tuple[int, np.dtype], list[Array]] = {}

    def reduced(self, array: Array, add: Callable[..., Any]) -> Steps:
        """Every element by `add` over all ranks, in place."""
        tag, shares = self._tag(), self._shares(array.size)
        own = array[shares[self._rank]]
        yield from self._combined(array, own, own, shares, add, tag)
        yield self._handed(own, array, shares, self._ranks, tag + 1)

    def broadcast(self, array: Array, root: int) -> Steps:
        """The root deals out the shares, each of which its owner hands to those that still want it."""
        tag, shares = self._tag(), self._shares(array.size)
        own = array[shares[self._rank]]
        yield self._settled(self._device.compute)
        if self._rank == root:
            yield self._sends(tag, {rank: array[shares[rank]] for rank in self._others})
        else:
            yield self._receives(tag, {root: own})
        yield self._handed(own, array, shares, [rank for rank in self._ranks if rank != root], tag + 1)

    def reduced_at(self, root: int, array: Array, out: Array | None) -> Steps:
        """The sum of the ranks' arrays in the root's `out`."""
        tag, shares = self._tag(), self._shares(array.size)
        mine = shares[self._rank]
        own = self._room(mine.stop - mine.start, array.dtype) if out is None else out[mine]
        yield from self._combined(array, array[mine], own, shares, np.add, tag)
        yield self._handed(own, out, shares, [root], tag + 1)
        if out is None:
            self._give_back(own)

    def gathered(self, own: Array | None, out: Array, pieces: list[slice]) -> Steps:
        """The ranks' pieces in everybody's `out`."""
        tag, mine = self._tag(), out[pieces[self._rank]]
        if own is not None:
            np.copyto(mine, own)
        yield self._settled(self._device.compute)
        yield self._handed(mine, out, pieces, self._ranks, tag)

    def scattered(self, array: Array, own: Array, pieces: list[slice]) -> Steps:
        """Of the sum of the ranks' arrays each gets its piece in `own`."""
        yield from self._combined(array, array[pieces[self._rank]], own, pieces, np.add, self._tag())

    def _combined(
        self, terms: Array, term: Array, own: Array, shares: list[slice], add: Callable[..., Any], tag: int
    ) -> Steps:
        """This rank's share of all ranks' combined `terms`, in `own`. Its own `term` of it may be the same object."""
        room = self._room(own.size * len(self._others), own.dtype)
        rows = dict(zip(self._others, room.reshape(len(self._others), own.size), strict=True))
        yield self._settled(self._device.compute)
        sends = self._sends(tag, {rank: terms[shares[rank]] for rank in self._others})
        yield sends + self._receives(tag, rows)
        with self._device.incoming as stream:  # not behind all that has been given to the compute stream by now
            for row in rows.values():
                add(term, row, out=own)
                term = own
        yield self._settled(stream)
        self._give_back(room)

    def _handed(
        self, own: Array, out: Array | None, pieces: list[slice], wanting: Collection[int], tag: int
    ) -> list[Any]:
        """Bring every rank's own piece into the `out` of the ranks that want it."""
        messages = self._sends(tag, {rank: own for rank in wanting if rank != self._rank})
        if out is not None and self._rank in wanting:
            messages += self._receives(tag, {rank: out[pieces[rank]] for rank in self._others})
        return messages

    def _sends(self, tag: int, pieces: dict[int, Array]) -> list[Any]:
        return [self._transport.begin_send(rank, tag, piece) for rank, piece in pieces.items() if piece.size]

    def _receives(self, tag: int, pieces: dict[int, Array]) -> list[Any]:
        return [self._transport.begin_receive(rank, tag, piece) for rank, piece in pieces.items() if piece.size]

    def _settled(self, stream: Any) -> list[Any]:
        """When what has been given to the stream by now has run."""
        event = self._device.event()
        event.record(stream)
        return [Mark(event)]

    def _shares(self, size: int) -> list[slice]:
        return [units_of(size, rank, len(self._ranks)) for rank in self._ranks]

    def _tag(self) -> int:
        return Tag.COLLECTIVES + 2 * next(self._transport.numbers) % TAGS

    def _room(self, size: int, dtype: np.dtype) -> Array:
        """Memory for what others send, MPI's once the compute stream, which may have freed it, has settled."""
        spare = self._rooms.get((size, dtype), [])
        return spare.pop() if spare else self._device.cupy.empty(size, dtype)

    def _give_back(self, room: Array) -> None:
        self._rooms.setdefault((room.size, room.dtype), []).append(room)
