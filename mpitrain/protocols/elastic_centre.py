"""Where the elastic centre x̃ lives, and how a worker takes samples, reads x̃ and adds to it. Three ways with one face:

- `one-sided`, on one node as well: x̃ lies in rank 0's window, or in shares in all ranks' windows. A worker reads by
  Get and adds by Accumulate; on one node both are its own loads and stores, so that rank 0 spends nothing on them.
- `messages`: rank 0 sends and adds on request.
- own: one process is master and worker.

Vectors travel in pieces of a cache block. Each element that is read is whole, and none that is added is lost, but x̃ is
read while others add to it: a worker may see one part of x̃ before and another after somebody's move. That is part of
the algorithm, which assumes no order among the workers; in round-robin order it does not happen.

MPI gives no atomic addition without its own lock: a rank killed within an Accumulate can block the others of its node.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import numpy as np

from mpitrain.device.cpu import CPU, Cpu
from mpitrain.flat import Array, block_of, block_slices, blocks
from mpitrain.protocols.messages import FromWorker
from mpitrain.rules.elastic import move_centre
from mpitrain.sampling.queue import Work

if TYPE_CHECKING:
    from mpitrain.mpi import Transport

#: From a place, so many minibatches for a worker: these, and the place after them (`Queue.take`).
Take = Callable[[int, int, int], tuple[list[Work], int]]
HEADER = 64  # bytes before rank 0's share: the place in the queue, on a cache line of its own


class Centre(Protocol):
    """A worker's side. `direct`: vectors are read to and added from where the device has them, else host memory."""

    direct: bool
    pieces: list[slice]  # in the order in which this worker treats them

    def claim(self, minibatches: int, worker: int) -> tuple[list[Work], int]:
        """Take minibatches, which nobody else then gets; none at the end, or when it is not this worker's stage. Them,
        and the place in the queue where they begin."""

    def read(self, piece: slice, out: Array) -> None:
        """Copy x̃'s piece. All pieces once, in order, after a claim that gave something."""

    def add(self, piece: slice, d: Array) -> None:
        """Start x̃ ← x̃ + d. All pieces once, in order; d stays untouched until `settle`."""

    def progress(self) -> None:
        """Give what is under way a chance to move."""

    def settle(self) -> None:
        """Wait until what was given to `add` may be changed."""

    def complete(self) -> None:
        """Wait until x̃ holds what was added."""


class MastersCentre(Protocol):
    """The master's side. `patient`: no worker ever waits for it."""

    patient: bool

    def put(self, theta: Array) -> None:
        """x̃ ← θ, before the workers start."""

    def copy(self, out: Array) -> None:
        """A copy of x̃ as it passes by."""

    def place(self) -> int:
        """How many samples have been taken from the queue."""

    def take(self, sender: int, message: FromWorker) -> bool:
        """Whether a worker's message was for the centre; then it has been dealt with."""

    def serve(self) -> bool:
        """Go on with what workers have asked for; whether anything moved."""


def shares(size: int, parts: int) -> list[slice]:
    """`size` elements in parts whose sizes differ by at most one."""
    return [slice(part * size // parts, (part + 1) * size // parts) for part in range(parts)]


class WindowCentre:
    """One-sided. Every rank has one; the master's also lays x̃ out and copies it. Collective to make and to close."""

    patient, direct = True, False

    def __init__(self, transport: "Transport", ranks: list[int], size: int, dtype: np.dtype, take: Take) -> None:
        self._transport, self._take = transport, take
        self._master, self._itemsize = ranks[0], dtype.itemsize
        owned = dict(zip(ranks, shares(size, len(ranks)), strict=True))
        mine = owned.get(transport.rank, slice(0, 0))
        self._memory = transport.summing_segments(HEADER + (mine.stop - mine.start) * dtype.itemsize)
        self._memory.own[:] = 0
        self._place = self._memory.own[:8].view(np.int64)
        self._owner = {(b.start, b.stop): (rank, part) for rank, part in owned.items() for b in block_slices(part)}
        first = ranks.index(transport.rank) if transport.rank in ranks else 0
        turned = ranks[first:] + ranks[:first]  # so that not all begin at the same share
        self.pieces = [b for rank in turned for b in block_slices(owned[rank])]
        transport.barrier("the centre's memory")

    def claim(self, minibatches: int, worker: int) -> tuple[list[Work], int]:
        place = self.place()
        while True:
            taken, after = self._take(place, minibatches, worker)
            if not taken:
                return [], place
            seen = self._memory.swap_word(self._master, 0, place, after)
            if seen == place:
                return taken, place
            place = seen

    def read(self, piece: slice, out: Array) -> None:
        rank, offset = self._where(piece)
        self._memory.read(rank, offset, out)
        self._transport.traffic.bytes_received += out.nbytes

    def add(self, piece: slice, d: Array) -> None:
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
        """x̃ ← θ, of which each rank lays out its own share. Collective."""
        for piece in self.pieces:
            rank, offset = self._where(piece)
            if rank == self._transport.rank:
                share = self._memory.own[offset : offset + theta[piece].nbytes].view(theta.dtype)
                np.copyto(share, theta[piece])
        self._memory.sync()
        self._transport.barrier("the centre")

    def copy(self, out: Array) -> None:
        """A copy of x̃ as it passes by."""
        self._memory.sync()
        for piece in self.pieces:
            self._memory.read(self._where(piece)[0], self._where(piece)[1], out[piece])

    def place(self) -> int:
        """How many samples have been taken from the queue."""
        return self._memory.word(self._master, 0)

    def take(self, sender: int, message: FromWorker) -> bool:
        """Whether the message was for the centre: it never is."""
        return False

    def serve(self) -> bool:
        """Nothing is asked of the master."""
        return False

    def close(self) -> None:
        """Collective, at a clean end."""
        del self._place
        self._memory.close()

    def _where(self, piece: slice) -> tuple[int, int]:
        rank, part = self._owner[piece.start, piece.stop]
        return rank, HEADER + (piece.start - part.start) * self._itemsize


class Kept:
    """x̃ in this process's own memory on the device, where nobody else reaches it."""

    def __init__(self, size: int, dtype: np.dtype, take: Take, device: Cpu = CPU) -> None:
        self._take, self._place, self._device = take, 0, device
        self.theta = device.to_device(np.zeros(size, dtype))
        self.pieces = list(blocks(size, block_of(self.theta)))

    def put(self, theta: Array) -> None:
        """x̃ ← θ."""
        self._device.upload(self.theta, theta)

    def copy(self, out: Array) -> None:
        """x̃."""
        self._device.download(self.theta, out)

    def add(self, piece: slice, d: Array) -> None:
        """x̃ ← x̃ + d."""
        move_centre(self.theta[piece], d)

    def place(self) -> int:
        """How many samples have been taken from the queue."""
        return self._place


class OwnCentre(Kept):
    """Master and worker are one process."""

    direct = True

    def claim(self, minibatches: int, worker: int) -> tuple[list[Work], int]:
        before = self._place
        taken, self._place = self._take(before, minibatches, worker)
        return taken, before

    def read(self, piece: slice, out: Array) -> None:
        np.copyto(out, self.theta[piece])

    def progress(self) -> None:
        pass

    settle = complete = progress
