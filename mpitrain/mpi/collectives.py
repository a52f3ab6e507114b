"""What all ranks do together."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import numpy as np

from mpitrain.flat import Array, pieces_of
from mpitrain.mpi.communicator import Communicator, Request
from mpitrain.mpi.launcher import MPI
from mpitrain.mpi.waiting import Member, Traffic


@dataclass(frozen=True)
class CollectiveCall:
    """This rank's part in a collective. `reads` and `writes` say of each array whether it is read (or which slice of
    it) and whether it is written.

    `begin` starts MPI's own collective on these arrays, or on copies of them in host memory. A carrier that makes the
    collective of messages calls its method of this `name` with `arguments` instead.
    """

    name: str
    arrays: Sequence[Array]
    reads: Sequence[bool | slice]
    writes: Sequence[bool]
    begin: Callable[[Communicator, Sequence[Array]], Request]
    arguments: tuple[object, ...]


class Carrier:
    """Hands arrays to MPI: here, those in host memory as they are."""

    def begin(self, comm: Communicator, call: CollectiveCall) -> Request:
        """Start a collective."""
        return call.begin(comm, call.arrays)

    def settle(self, buffer: bytes | Array) -> None:
        """Wait until a message's buffer may be read and written."""

    def duplicate(self, transport: "CountedCollectives") -> "Carrier":
        """The carrier of a duplicate of its transport."""
        return self


HOST = Carrier()


class CountedCollectives:
    """Sums, gathers, broadcasts of arrays, counted as payload at their start.

    `start_...` returns a request, until whose end the arrays must stay untouched.
    """

    comm: Communicator
    rank: int
    size: int
    traffic: Traffic
    wait: Callable[..., None]
    carrier: Carrier = HOST

    def carried(self, carrier: Carrier) -> Self:
        """The same ranks, messages and counts, for the arrays that another carrier takes."""
        carried = copy.copy(self)
        carried.carrier = carrier
        return carried

    def begin_send(self, to: int, tag: int, buffer: bytes | Array) -> Request:
        """Start sending a message to one of these ranks, uncounted."""
        return self.comm.Isend([buffer, MPI.BYTE], to, tag)

    def begin_receive(self, source: int, tag: int, buffer: Array) -> Request:
        """Start receiving a message from one of these ranks, uncounted."""
        return self.comm.Irecv([buffer, MPI.BYTE], source, tag)

    def start_sum(self, array: Array) -> Request:
        """Start summing an array over all ranks, in place."""
        return self._combine("sum", array, MPI.SUM)

    def start_maximum(self, array: Array) -> Request:
        """Start taking each element's maximum over all ranks, in place."""
        return self._combine("maximum", array, MPI.MAX)

    def start_broadcast(self, array: Array, root: int) -> Request:
        """Start copying the root's array over the others'. The root counts it as sent to each of them."""
        is_root, nbytes = self.rank == root, array.nbytes
        sent, received = (nbytes * (self.size - 1), 0) if is_root else (0, nbytes)
        self.traffic.count(sent, received, "broadcast")

        def begin(comm: Communicator, arrays: Sequence[Array]) -> Request:
            return comm.Ibcast(arrays[0], root)

        return self._begin(CollectiveCall("broadcast", [array], [is_root], [not is_root], begin, (array, root)))

    def start_reduce(self, root: int, array: Array, out: Array | None) -> Request:
        """Start summing the ranks' arrays into the root's `out`, which may be its `array`; it is None on the others."""
        is_root, nbytes = self.rank == root, array.nbytes
        sent, received = (0, nbytes * (self.size - 1)) if is_root else (nbytes, 0)
        self.traffic.count(sent, received, "reduce")

        def begin(comm: Communicator, arrays: Sequence[Array]) -> Request:
            term = MPI.IN_PLACE if out is array else arrays[0]
            return comm.Ireduce(term, None if out is None else arrays[-1], MPI.SUM, root)

        arrays = [array] if out is None or out is array else [array, out]
        reads, writes = [True, False], [out is array, True]
        return self._begin(CollectiveCall("reduce", arrays, reads, writes, begin, (root, array, out)))

    def start_gather(self, own: Array | None, out: Array, counts: list[int]) -> Request:
        """Start putting the members' pieces, `counts` elements long, one after another into every rank's `out`.

        With `own=None` the rank's own piece is in `out` already.
        """
        mine = counts[self.rank] * out.itemsize
        self.traffic.count(mine * (self.size - 1), sum(counts) * out.itemsize - mine, "gather")

        def begin(comm: Communicator, arrays: Sequence[Array]) -> Request:
            return comm.Iallgatherv(MPI.IN_PLACE if own is None else arrays[0], [arrays[-1], counts])

        pieces = pieces_of(counts)
        arguments = (own, out, pieces)
        if own is None:
            return self._begin(CollectiveCall("gather", [out], [pieces[self.rank]], [True], begin, arguments))
        return self._begin(CollectiveCall("gather", [own, out], [True, False], [False, True], begin, arguments))

    def start_reduce_scatter(self, array: Array, own: Array, counts: list[int]) -> Request:
        """Start summing the ranks' arrays; of the sum each member gets its piece, `counts` elements long, in `own`."""
        self.traffic.count(array.nbytes - own.nbytes, own.nbytes * (self.size - 1), "reduce-scatter")

        def begin(comm: Communicator, arrays: Sequence[Array]) -> Request:
            return comm.Ireduce_scatter(arrays[0], arrays[1], counts)

        arrays, arguments = [array, own], (array, own, pieces_of(counts))
        return self._begin(CollectiveCall("reduce_scatter", arrays, [True, False], [False, True], begin, arguments))

    def sum(self, array: Array, what: str) -> None:
        """Sum an array over all ranks, in place."""
        self.wait(self.start_sum(array), what)

    def _combine(self, name: str, array: Array, operation: MPI.Op) -> Request:
        if self.size > 1:  # one rank alone sends nothing
            self.traffic.count(array.nbytes, array.nbytes, name)

        def begin(comm: Communicator, arrays: Sequence[Array]) -> Request:
            return comm.Iallreduce(MPI.IN_PLACE, arrays[0], operation)

        return self._begin(CollectiveCall(name, [array], [True], [True], begin, (array,)))

    def _begin(self, call: CollectiveCall) -> Request:
        return self.carrier.begin(self.comm, call)


def reduced(terms: Sequence[Array], combine: Callable[[Array, Array], Array]) -> Array:
    """Combine the terms in the order in which MPICH's reductions do. Terms may be overwritten by `combine`."""
    beyond = len(terms) - (1 << (len(terms).bit_length() - 1))
    level = [combine(terms[2 * i], terms[2 * i + 1]) for i in range(beyond)] + list(terms[2 * beyond :])
    while len(level) > 1:
        level = [combine(level[i], level[i + 1]) for i in range(0, len(level), 2)]
    return level[0]


class Collectives(CountedCollectives, Member):
    """Collectives of all ranks; barriers and what is exchanged only once are not counted."""

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
    """The texts that follow one another, of this many bytes each (int64)."""
    sizes = np.frombuffer(counts, np.int64).tolist()
    return tuple(everything[piece].decode() for piece in pieces_of(sizes))
