"""What all ranks do together."""

import numpy as np

from mpitrain.flat import Array
from mpitrain.mpi.start import MPI
from mpitrain.mpi.waiting import Member


class Collectives(Member):
    """Sums, gathers, broadcasts. `start_...` returns a request, until whose end the arrays must stay untouched."""

    def start_sum(self, array: Array) -> MPI.Request:
        """Start summing an array over all ranks, in place."""
        self.traffic.bytes_sent += array.nbytes
        self.traffic.bytes_received += array.nbytes
        self.traffic.messages_sent += 1
        return self.comm.Iallreduce(MPI.IN_PLACE, array)

    def sum_now(self, array: Array) -> None:
        """Sum an array over all ranks, in place; no rank may be far. The one collective that gets device memory."""
        self._count(array.nbytes, array.nbytes)
        self.comm.Allreduce(MPI.IN_PLACE, array)

    def start_maximum(self, array: Array) -> MPI.Request:
        """Start taking each element's maximum over all ranks, in place."""
        self._count(array.nbytes, array.nbytes)
        return self.comm.Iallreduce(MPI.IN_PLACE, array, MPI.MAX)

    def start_broadcast(self, array: Array, root: int) -> MPI.Request:
        """Start copying the root's array over the others'. As payload it leaves the root once for each of them."""
        self._count(*((array.nbytes * (self.size - 1), 0) if self.rank == root else (0, array.nbytes)))
        return self.comm.Ibcast(array, root)

    def start_sum_at(self, root: int, array: Array, out: Array | None) -> MPI.Request:
        """Start summing the ranks' arrays into the root's `out`, which the others have none of."""
        self._count(*((0, array.nbytes * (self.size - 1)) if self.rank == root else (array.nbytes, 0)))
        return self.comm.Ireduce(array, out, MPI.SUM, root)

    def start_gather(self, own: Array | None, out: Array, counts: list[int]) -> MPI.Request:
        """Start putting the ranks' pieces, `counts` elements long, one after another into every rank's `out`.

        With None for `own` the rank's own piece is in its place in `out` already.
        """
        mine = counts[self.rank] * out.itemsize
        self._count(mine * (self.size - 1), sum(counts) * out.itemsize - mine)
        return self.comm.Iallgatherv(MPI.IN_PLACE if own is None else own, [out, counts])

    def start_scattered_sum(self, array: Array, own: Array, counts: list[int]) -> MPI.Request:
        """Start summing the ranks' arrays; of the sum each gets its piece, `counts` elements long, in `own`."""
        self._count(array.nbytes - own.nbytes, own.nbytes * (self.size - 1))
        return self.comm.Ireduce_scatter(array, own, counts)

    def sum(self, array: Array, what: str) -> None:
        """Sum an array over all ranks, in place."""
        self.wait(self.start_sum(array), what)

    def start_barrier(self) -> MPI.Request:
        """Start waiting for every rank."""
        return self.comm.Ibarrier()

    def barrier(self, what: str) -> None:
        """Wait for every rank."""
        self.wait(self.comm.Ibarrier(), what)

    def broadcast(self, message: bytes, what: str, root: int = 0) -> bytes:
        """The root's bytes on every rank."""
        length = np.array([len(message)], dtype=np.int64)
        self.wait(self.comm.Ibcast(length, root), what)
        buffer = bytearray(message) if self.rank == root else bytearray(int(length[0]))
        self.wait(self.comm.Ibcast([buffer, MPI.BYTE], root), what)
        return bytes(buffer)

    def broadcast_array(self, array: Array, what: str, root: int = 0) -> None:
        """The root's array on every rank, in place."""
        self.wait(self.comm.Ibcast(array, root), what)

    def gather_texts(self, text: str, what: str) -> list[str]:
        """Every rank's text, by rank."""
        mine = text.encode()
        counts = np.zeros(self.size, dtype=np.int64)
        self.wait(self.comm.Iallgather(np.array([len(mine)], dtype=np.int64), counts), what)
        everything = bytearray(int(counts.sum()))
        self.wait(self.comm.Iallgatherv([mine, MPI.BYTE], [everything, counts.tolist(), MPI.BYTE]), what)
        ends = np.cumsum(counts)
        return [everything[int(e - c) : int(e)].decode() for c, e in zip(counts, ends, strict=True)]
