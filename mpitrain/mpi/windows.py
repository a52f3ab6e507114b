"""Memory that other ranks reach without this one's help: shared on a node, one-sided across nodes."""

import numpy as np

from mpitrain.flat import Array
from mpitrain.mpi.communicator import Request
from mpitrain.mpi.launcher import MPI
from mpitrain.mpi.waiting import Member


class Segments:
    """Memory of `size` bytes on each rank, that of this one in `own`. Any rank reads it and adds to it with one-sided
    calls of MPI, until `close`. If it is `shared`, all ranks are on one node, and each has the others' memory as an
    array, too (`segment`).

    No addition to an element is lost, whoever adds at the same time. On one node the sum is made by the caller's
    processor, under a lock of the MPI library's; a remote target's network card or progress engine makes it elsewhere.
    """

    def __init__(self, member: Member, size: int, shared: bool = False) -> None:
        self._member = member
        self._adding: list[Request] = []
        self._word = np.zeros(3, dtype=np.int64)
        member.wait(member.comm.Ibarrier(), "a window")  # names missing ranks; the next call blocks
        with member.blocking("MPI_Win_allocate_shared" if shared else "MPI_Win_allocate"):
            self._window = member.runtime.allocate(size, member.comm, shared)
            self._window.Lock_all(MPI.MODE_NOCHECK)
        self.own = np.frombuffer(self._window.tomemory(), dtype=np.uint8)

    def sync(self) -> None:
        """A memory barrier: what was stored before is seen before what is stored after."""
        self._window.Sync()

    def close(self) -> None:
        """Collective; only at a clean end, since freeing waits for every rank."""
        self._member.wait(self._member.comm.Ibarrier(), "the end of a window")
        with self._member.blocking("MPI_Win_free"):
            self._window.Unlock_all()
            self._window.Free()

    def segment(self, rank: int) -> Array:
        """One rank's memory as uint8, if it is shared."""
        return np.frombuffer(self._window.Shared_query(rank)[0], dtype=np.uint8)

    def read(self, rank: int, offset: int, out: Array) -> None:
        """Copy `out.nbytes` bytes from another rank's memory."""
        with self._member.stopwatch.on("communication"):
            request = self._window.Rget([out, MPI.BYTE], rank, (offset, out.nbytes, MPI.BYTE))
            self._member.wait(request, "a one-sided read", whom=[rank], nbytes=out.nbytes)

    def add(self, rank: int, offset: int, array: Array) -> None:
        """Start adding an array at a byte offset. It must stay untouched until `settle`."""
        kind = MPI.Datatype.fromcode(array.dtype.char)
        target = (offset, array.size, kind)
        communicating = self._member.stopwatch.on("communication")
        with communicating, self._member.blocking("MPI_Raccumulate"):  # under a lock that a frozen rank may hold
            self._adding.append(self._window.Raccumulate([array, kind], rank, target, MPI.SUM))

    def progress(self) -> None:
        """Give MPI a chance to move what is under way."""
        self._adding = [request for request in self._adding if not request.Test()]

    def settle(self) -> None:
        """Wait until the arrays given to `add` may be changed."""
        for request in self._adding:
            self._member.wait(request, "one-sided additions to leave")
        self._adding.clear()

    def complete(self) -> None:
        """Wait until every rank's memory holds what this rank has added."""
        self.settle()
        with self._member.stopwatch.on("communication"), self._member.blocking("MPI_Win_flush_all"):
            self._window.Flush_all()

    def word(self, rank: int, offset: int) -> int:
        """An int64 of a rank's memory."""
        self.read(rank, offset, self._word[:1])
        return int(self._word[0])

    def swap_word(self, rank: int, offset: int, expected: int, wanted: int) -> int:
        """Store `wanted` in an int64 if it is `expected`, in one step for all ranks; what it was."""
        self._word[:] = wanted, expected, 0
        with self._member.blocking("MPI_Win_flush"):
            self._window.Compare_and_swap(self._word[0:1], self._word[1:2], self._word[2:3], rank, offset)
            self._window.Flush(rank)
        return int(self._word[2])
