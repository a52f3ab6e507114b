"""A centre that only adds, in windows: x̃ lies in rank 0's memory, or in shares in all ranks' memories.

A worker reads by Get and adds by Accumulate; on one node both are its own loads and stores, so that rank 0 spends
nothing on them. Vectors travel in pieces of a cache block. Each element that is read is whole, and none that is added
is lost, but x̃ is read while others add to it: a worker may see one part of x̃ before and another after somebody's move.
That is part of the algorithm, which assumes no order among the workers; in round-robin order it does not happen.

MPI gives no atomic addition without its own lock: a rank killed within an Accumulate can block the others of its node.
"""

import numpy as np

from mpitrain.flat import Array, block_slices, share
from mpitrain.mpi import Transport
from mpitrain.mpi.messages import ENTER_MPI
from mpitrain.mpi.windows import Segments
from mpitrain.protocols.messages import Gradient
from mpitrain.protocols.server.interface import Centre, Claimed, Source

HEADER = 64  # bytes before the first rank's share: the place in the queue, on a cache line of its own


class WindowCentre(Centre):
    """A centre with a share on each of `ranks`, the master first. Master and workers each make one; `number` is this
    worker's; without a `source` there is nothing to claim. Collective to make and to close."""

    poll_interval, polls_when_idle = ENTER_MPI, 10

    def __init__(
        self, transport: Transport, ranks: list[int], size: int, dtype: np.dtype, source: Source | None, number: int = 0
    ) -> None:
        self._transport, self._source, self._number = transport, source, number
        self._master, self._itemsize = ranks[0], dtype.itemsize
        owned = {rank: share(size, place, len(ranks)) for place, rank in enumerate(ranks)}
        mine = owned.get(transport.rank, slice(0, 0))
        self._memory = Segments(transport, HEADER + (mine.stop - mine.start) * dtype.itemsize)
        self._memory.own[:] = 0
        self._owner = {(b.start, b.stop): (rank, part) for rank, part in owned.items() for b in block_slices(part)}
        first = ranks.index(transport.rank) if transport.rank in ranks else 0
        turned = ranks[first:] + ranks[:first]  # so that workers do not all begin at the same share
        self.pieces = [b for rank in turned for b in block_slices(owned[rank])]
        transport.barrier("the centre's memory")

    # ---- a worker's

    def claim(self, has: int = 0) -> Claimed:
        assert self._source is not None
        place = self.place()
        while True:
            claimed, after = self._source.claim(place, self._number, has)
            seen = self._memory.swap_word(self._master, 0, place, after) if claimed.works else place
            if seen == place:
                return claimed
            place = seen

    def read(self, piece: slice, out: Array) -> None:
        rank, offset = self._where(piece)
        self._memory.read(rank, offset, out)
        self._transport.traffic.bytes_received += out.nbytes

    def push(self, piece: slice, d: Array, told: Gradient | None = None) -> None:
        rank, offset = self._where(piece)
        self._memory.add(rank, offset, d)
        self._transport.traffic.bytes_sent += d.nbytes
        self._transport.traffic.messages_sent += 1

    def progress(self) -> None:
        self._memory.progress()

    def settle(self) -> None:
        self._memory.settle()

    def complete(self) -> None:
        self._memory.complete()

    # ---- the master's

    def put(self, theta: Array) -> None:
        """x̃ ← θ; each rank writes its own share. Collective."""
        for piece in self.pieces:
            rank, offset = self._where(piece)
            if rank == self._transport.rank:
                share = self._memory.own[offset : offset + theta[piece].nbytes].view(theta.dtype)
                np.copyto(share, theta[piece])
        self._memory.sync()
        self._transport.barrier("the centre")

    def copy(self, out: Array) -> None:
        self._memory.sync()
        for piece in self.pieces:
            self._memory.read(*self._where(piece), out[piece])

    def place(self) -> int:
        return self._memory.word(self._master, 0)

    def close(self) -> None:
        self._memory.close()

    def _where(self, piece: slice) -> tuple[int, int]:
        rank, part = self._owner[piece.start, piece.stop]
        return rank, HEADER + (piece.start - part.start) * self._itemsize
