"""Chunked collectives on arrays in GPU memory, made of messages that a CUDA-aware MPI reads from there.

All CUDA-aware MPI libraries accept device memory in messages, but few in nonblocking collectives, and blocking ones
wait without a deadline. Here every rank owns a share of the elements. It receives the others' terms of its share, adds
them up, and sends the sum to the ranks that need it, so that in a sum over K ranks of n elements each rank receives and
sends 2(K−1)/K·n. The sum of an element is computed by one rank, so that all get the same bits.
"""

from collections.abc import Collection, Sequence

import numpy as np

from mpitrain.device.collectives import StagedCarrier, Steps
from mpitrain.device.gpu_memory import GpuMemory
from mpitrain.flat import Array, share
from mpitrain.mpi import Transport
from mpitrain.mpi.collectives import CollectiveCall
from mpitrain.mpi.communicator import Communicator, Request
from mpitrain.mpi.tags import Tag
from mpitrain.mpi.team import Team

#: Each collective has two of these tags, one for each of its steps, so that its messages match no other's.
TAGS = 1 << 14
Shares = Sequence[slice]  # of a vector, by rank


class DirectCarrier(StagedCarrier):
    """Passes arrays in GPU memory to a CUDA-aware MPI, in messages and in collectives made of messages. Each collective
    is a method called by its name.

    MPI does not know streams. Before it may read or overwrite an array, the kernels launched so far must have run; the
    data of a completed request are visible to every kernel that is launched afterwards.
    """

    def __init__(self, transport: Transport | Team, device: GpuMemory) -> None:
        super().__init__(transport, device)
        self._messages, self._rank, self._ranks = transport, transport.rank, range(transport.size)
        self._others = [rank for rank in self._ranks if rank != self._rank]
        self._rooms: dict[tuple[int, np.dtype], list[Array]] = {}

    def begin(self, comm: Communicator, call: CollectiveCall) -> Request:
        if all(isinstance(array, np.ndarray) for array in call.arrays):
            return super().begin(comm, call)
        return self._enqueue(getattr(self, call.name)(*call.arguments))

    def settle(self, buffer: bytes | Array) -> None:
        if not isinstance(buffer, (bytes, np.ndarray)):
            self._device.compute.synchronize()

    def sum(self, array: Array) -> Steps:
        """Sum every element over all ranks, in place."""
        return self._reduced(array.reshape(-1), np.add)

    def maximum(self, array: Array) -> Steps:
        """Take every element's maximum over all ranks, in place."""
        return self._reduced(array.reshape(-1), np.maximum)

    def _reduced(self, array: Array, add: np.ufunc) -> Steps:
        tag, shares = self._tag(), self._shares(array.size)
        own = array[shares[self._rank]]
        yield from self._combined(array, own, own, shares, add, tag)
        yield self._handed(own, array, shares, self._ranks, tag + 1)

    def broadcast(self, array: Array, root: int) -> Steps:
        """The root sends each share to its owner, which sends it to the ranks that do not have it yet."""
        array = array.reshape(-1)
        tag, shares = self._tag(), self._shares(array.size)
        own = array[shares[self._rank]]
        yield self._settled(self._device.compute)
        if self._rank == root:
            yield self._sends(tag, {rank: array[shares[rank]] for rank in self._others})
        else:
            yield self._receives(tag, {root: own})
        yield self._handed(own, array, shares, [rank for rank in self._ranks if rank != root], tag + 1)

    def reduce(self, root: int, array: Array, out: Array | None) -> Steps:
        """Put the sum of the ranks' arrays into the root's `out`."""
        array, out = array.reshape(-1), None if out is None else out.reshape(-1)
        tag, shares = self._tag(), self._shares(array.size)
        mine = shares[self._rank]
        own = self._room(mine.stop - mine.start, array.dtype) if out is None else out[mine]
        yield from self._combined(array, array[mine], own, shares, np.add, tag)
        yield self._handed(own, out, shares, [root], tag + 1)
        if out is None:
            self._give_back(own)

    def gather(self, own: Array | None, out: Array, pieces: Shares) -> Steps:
        """Put the ranks' pieces into `out` on every rank. With `own=None` this rank's piece is in `out` already."""
        out = out.reshape(-1)
        tag, mine = self._tag(), out[pieces[self._rank]]
        if own is not None:
            np.copyto(mine, own.reshape(-1))
        yield self._settled(self._device.compute)
        yield self._handed(mine, out, pieces, self._ranks, tag)

    def reduce_scatter(self, array: Array, own: Array, pieces: Shares) -> Steps:
        """Put each rank's piece of the sum of the ranks' arrays into its `own`."""
        array, own = array.reshape(-1), own.reshape(-1)
        yield from self._combined(array, array[pieces[self._rank]], own, pieces, np.add, self._tag())

    def _combined(self, terms: Array, term: Array, own: Array, shares: Shares, add: np.ufunc, tag: int) -> Steps:
        """Combine this rank's share of all ranks' `terms` into `own`, which may be its own `term` itself."""
        room = self._room(own.size * len(self._others), own.dtype)
        rows = dict(zip(self._others, room.reshape(len(self._others), own.size), strict=True))
        yield self._settled(self._device.compute)
        sends = self._sends(tag, {rank: terms[shares[rank]] for rank in self._others})
        yield sends + self._receives(tag, rows)
        with self._device.incoming as stream:  # so as not to wait for everything in the compute stream
            for row in rows.values():
                add(term, row, out=own)
                term = own
        yield self._settled(stream)
        self._give_back(room)

    def _handed(
        self, own: Array, out: Array | None, pieces: Shares, wanting: Collection[int], tag: int
    ) -> list[Request]:
        """Send every rank's own piece to the `out` of the ranks that need it."""
        messages = self._sends(tag, {rank: own for rank in wanting if rank != self._rank})
        if out is not None and self._rank in wanting:
            messages += self._receives(tag, {rank: out[pieces[rank]] for rank in self._others})
        return messages

    def _sends(self, tag: int, pieces: dict[int, Array]) -> list[Request]:
        return [self._messages.begin_send(rank, tag, piece) for rank, piece in pieces.items() if piece.size]

    def _receives(self, tag: int, pieces: dict[int, Array]) -> list[Request]:
        return [self._messages.begin_receive(rank, tag, piece) for rank, piece in pieces.items() if piece.size]

    def _shares(self, size: int) -> Shares:
        return [share(size, rank, len(self._ranks)) for rank in self._ranks]

    def _tag(self) -> int:
        return Tag.COLLECTIVES + 2 * next(self._messages.numbers) % TAGS

    def _room(self, size: int, dtype: np.dtype) -> Array:
        """Memory for the data of other ranks. MPI may write to it once the compute stream, which may still use memory
        that was freed earlier, has settled."""
        spare = self._rooms.get((size, dtype), [])
        return spare.pop() if spare else self._device.cupy.empty(size, dtype)

    def _give_back(self, room: Array) -> None:
        self._rooms.setdefault((room.size, room.dtype), []).append(room)
