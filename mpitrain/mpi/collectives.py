"""What all ranks do together."""

from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate

import numpy as np

from mpitrain.flat import Array
from mpitrain.mpi.communicator import Communicator, Request
from mpitrain.mpi.launcher import MPI
from mpitrain.mpi.waiting import Member, Traffic


class CountedCollectives:
    """Sums, gathers, broadcasts of arrays, counted as payload at their start, however `begin_...` carries them out.

    `start_...` returns a request, until whose end the arrays must stay untouched.
    """

    rank: int
    position: int
    size: int
    traffic: Traffic
    wait: Callable[..., None]

    #: `start_...` uncounted.
    begin_sum: Callable[[Array], Request]
    begin_maximum: Callable[[Array], Request]
    begin_broadcast: Callable[[Array, int], Request]
    begin_reduce: Callable[[int, Array, Array | None], Request]
    begin_gather: Callable[[Array | None, Array, list[int]], Request]
    begin_reduce_scatter: Callable[[Array, Array, list[int]], Request]

    def start_sum(self, array: Array) -> Request:
        """Start summing an array over all ranks, in place."""
        self.traffic.count(array.nbytes, array.nbytes, "sum")
        return self.begin_sum(array)

    def start_maximum(self, array: Array) -> Request:
        """Start taking each element's maximum over all ranks, in place."""
        self.traffic.count(array.nbytes, array.nbytes, "maximum")
        return self.begin_maximum(array)

    def start_broadcast(self, array: Array, root: int) -> Request:
        """Start copying the root's array over the others'. As payload it leaves the root once for each of them."""
        sent, received = (array.nbytes * (self.size - 1), 0) if self.rank == root else (0, array.nbytes)
        self.traffic.count(sent, received, "broadcast")
        return self.begin_broadcast(array, root)

    def start_reduce(self, root: int, array: Array, out: Array | None) -> Request:
        """Start summing the ranks' arrays into the root's `out`, which may be its `array`; it is None on the others."""
        sent, received = (0, array.nbytes * (self.size - 1)) if self.rank == root else (array.nbytes, 0)
        self.traffic.count(sent, received, "reduce")
        return self.begin_reduce(root, array, out)

    def start_gather(self, own: Array | None, out: Array, counts: list[int]) -> Request:
        """Start putting the members' pieces, `counts` elements long, one after another into every rank's `out`.

        With `own=None` the rank's own piece is in `out` already.
        """
        mine = counts[self.position] * out.itemsize
        self.traffic.count(mine * (self.size - 1), sum(counts) * out.itemsize - mine, "gather")
        return self.begin_gather(own, out, counts)

    def start_reduce_scatter(self, array: Array, own: Array, counts: list[int]) -> Request:
        """Start summing the ranks' arrays; of the sum each member gets its piece, `counts` elements long, in `own`."""
        self.traffic.count(array.nbytes - own.nbytes, own.nbytes * (self.size - 1), "reduce-scatter")
        return self.begin_reduce_scatter(array, own, counts)

    def sum(self, array: Array, what: str) -> None:
        """Sum an array over all ranks, in place."""
        self.wait(self.start_sum(array), what)


class Begun(CountedCollectives):
    """MPI's own, for arrays in host memory."""

    comm: Communicator

    def begin_sum(self, array: Array) -> Request:
        return self.comm.Iallreduce(MPI.IN_PLACE, array)

    def begin_maximum(self, array: Array) -> Request:
        return self.comm.Iallreduce(MPI.IN_PLACE, array, MPI.MAX)

    def begin_broadcast(self, array: Array, root: int) -> Request:
        return self.comm.Ibcast(array, root)

    def begin_reduce(self, root: int, array: Array, out: Array | None) -> Request:
        return self.comm.Ireduce(MPI.IN_PLACE if out is array else array, out, MPI.SUM, root)

    def begin_gather(self, own: Array | None, out: Array, counts: list[int]) -> Request:
        return self.comm.Iallgatherv(MPI.IN_PLACE if own is None else own, [out, counts])

    def begin_reduce_scatter(self, array: Array, own: Array, counts: list[int]) -> Request:
        return self.comm.Ireduce_scatter(array, own, counts)


class Collectives(Begun, Member):
    """The same of all ranks, and what is not counted: barriers, and what is told once."""

    def start_barrier(self) -> Request:
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
        if not everything:
            return [""] * self.size
        self.wait(self.comm.Iallgatherv([mine, MPI.BYTE], [everything, counts.tolist(), MPI.BYTE]), what)
        return list(_texts(bytes(everything), counts.tobytes()))


@lru_cache(maxsize=1)  # all simulated ranks get the same
def _texts(everything: bytes, counts: bytes) -> tuple[str, ...]:
    """The texts that follow one another, of so many bytes each (int64)."""
    sizes = np.frombuffer(counts, np.int64).tolist()
    return tuple(everything[end - size : end].decode() for size, end in zip(sizes, accumulate(sizes), strict=True))
