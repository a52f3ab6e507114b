"""The only module that imports mpi4py: start and abort, messages, collectives, windows.

Nothing here waits without a deadline: every wait polls and sleeps between polls, so that signals are seen and ranks
that share a core make room for each other.
"""

import copy
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import mpi4py

if not Path("/sys/class/infiniband").exists():
    # Without such a network Open MPI's UCX windows fail in every rank with a line on standard error, then step aside.
    os.environ.setdefault("OMPI_MCA_osc", "^ucx")
mpi4py.rc.thread_level = "funneled"

import numpy as np  # noqa: E402
from mpi4py import MPI  # noqa: E402

from mpitrain.errors import Overdue  # noqa: E402
from mpitrain.flat import Array  # noqa: E402

SHORTEST_SLEEP, LONGEST_SLEEP = 20e-6, 2e-3  # seconds; each waking costs a busy neighbour some 30 µs


def abort_on_exception() -> None:
    """Make an uncaught exception end the whole job with its traceback; without it the other ranks would hang."""

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        lines = traceback.format_exception(kind, error, trace)
        sys.stderr.write(f"rank {MPI.COMM_WORLD.rank}:\n{''.join(lines)}")
        abort(1)

    sys.excepthook = hook


def abort(status: int) -> None:
    """End every rank, once what this one has printed is on its way: launchers drop what comes with the abort."""
    sys.stdout.flush()
    sys.stderr.flush()
    time.sleep(1.0)
    MPI.COMM_WORLD.Abort(status)


def library() -> str:
    """Vendor and version of the MPI library, one line."""
    return MPI.Get_library_version().splitlines()[0].strip("\0 ,").replace("\t", " ")


def cuda_aware() -> bool:
    """Whether the MPI library says that it takes device buffers; MPITRAIN_CUDA_AWARE=0|1 overrides it."""
    if (said := os.environ.get("MPITRAIN_CUDA_AWARE")) is not None:
        return said == "1"
    kinds = MPI.COMM_WORLD.Get_info().Get("mpi_memory_alloc_kinds") if MPI.Is_initialized() else None
    return "cuda" in (kinds or "")


@dataclass
class Traffic:
    """What this rank exchanged: payload bytes, by whatever means they travelled, and messages."""

    bytes_sent: int = 0
    bytes_received: int = 0
    messages_sent: int = 0


class Transport:
    """This rank's view of its communicator: who is where, messages, collectives, windows.

    `deadline` seconds without an answer raise Overdue. `clock` and `sleep` can be simulated.
    """

    def __init__(
        self,
        comm: MPI.Intracomm | None = None,
        deadline: float = 300.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.comm = comm if comm is not None else MPI.COMM_WORLD
        self.rank, self.size = self.comm.rank, self.comm.size
        self.deadline, self.clock, self.sleep = deadline, clock, sleep
        self.traffic = Traffic()
        local = self.comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.local_rank, self.local_size = local.rank, local.size
        self.leader = bool(local.rank == 0)
        self.nodes = self._sum_of_small(int(self.leader))
        self._local = local
        self._in_flight: list[tuple[MPI.Request, Any]] = []

    # ---- waiting

    def wait(self, request: MPI.Request, what: str, yielding: float = 0.0) -> None:
        """Wait for a request. Raises Overdue naming `what`.

        For the first `yielding` seconds the rank does not sleep but lets others have the core: 8 ranks on 2 cores sum
        64 numbers in 0.1 ms so, and in 1.6 ms with sleeps between the steps.
        """
        if request.Test():
            return
        until = self.clock() + yielding
        while yielding and self.clock() < until:
            os.sched_yield()
            if request.Test():
                return
        backoff = self.backoff(what)
        while not request.Test():
            backoff.pause()

    def backoff(self, what: str | Callable[[], str]) -> "Backoff":
        """A pause for polling loops that grows from microseconds to a millisecond and ends at the deadline.

        `what` is waited for; a function says it when it has come to that.
        """
        return Backoff(self, what)

    # ---- messages

    def send(self, to: int, tag: int, buffer: Any) -> MPI.Request:
        """Start sending a contiguous buffer. It must stay untouched until the request has completed."""
        request = self.comm.Isend([buffer, MPI.BYTE], to, tag)
        self.traffic.messages_sent += 1
        self.traffic.bytes_sent += memoryview(buffer).nbytes
        return request

    def post(self, to: int, tag: int, message: bytes) -> None:
        """Send a small message and keep it until it has gone."""
        self._in_flight = [(r, m) for r, m in self._in_flight if not r.Test()]
        self._in_flight.append((self.send(to, tag, message), message))

    def flush(self) -> None:
        """Wait until all posted messages have gone."""
        for request, _ in self._in_flight:
            self.wait(request, "a posted message to leave")
        self._in_flight.clear()

    def poll(self, tag: int, source: int = MPI.ANY_SOURCE, most: int = 1 << 16) -> tuple[int, bytes] | None:
        """A waiting message as (sender, bytes), or None. Raises ValueError for one longer than `most` bytes."""
        status = MPI.Status()
        message = self.comm.Improbe(source, tag, status)
        if message is None:
            return None
        count = status.Get_count(MPI.BYTE)
        if count > most:
            raise ValueError(f"a message of {count} bytes from rank {status.source}, where {most} is the most")
        buffer = bytearray(count)
        message.Recv([buffer, MPI.BYTE])
        self.traffic.bytes_received += count
        return status.source, bytes(buffer)

    def waiting(self, tag: int) -> bool:
        """Whether any message with this tag waits."""
        return bool(self.comm.Iprobe(MPI.ANY_SOURCE, tag))

    def send_matched(self, to: int, tag: int, buffer: Any) -> MPI.Request:
        """Start a synchronous-mode send: the request completes once the receiver has taken the message up."""
        self._count(memoryview(buffer).nbytes, 0)
        return self.comm.Issend([buffer, MPI.BYTE], to, tag)

    def match(self, tag: int, allot: Callable[[int, int], Array]) -> tuple[int, MPI.Request, Array] | None:
        """Start receiving a waiting message into `allot(sender, bytes)`, uint8: sender, request, that memory."""
        status = MPI.Status()
        message = self.comm.Improbe(MPI.ANY_SOURCE, tag, status)
        if message is None:
            return None
        count = status.Get_count(MPI.BYTE)
        memory = allot(status.source, count)[:count]
        self.traffic.bytes_received += count
        return status.source, message.Irecv([memory, MPI.BYTE]), memory

    def receive(self, source: int, tag: int, what: str) -> bytes:
        """Wait for a small message from one rank."""
        backoff = self.backoff(what)
        while (answer := self.poll(tag, source)) is None:
            backoff.pause()
        return answer[1]

    def receive_into(self, source: int, tag: int, buffer: Array, what: str) -> None:
        """Wait for a message of exactly the buffer's length. Raises ValueError when it has another."""
        request, status = self.comm.Irecv([buffer, MPI.BYTE], source, tag), MPI.Status()
        backoff = self.backoff(what)
        while not request.Test(status):
            backoff.pause()
        if status.Get_count(MPI.BYTE) != buffer.nbytes:
            raise ValueError(f"{status.Get_count(MPI.BYTE)} bytes from rank {source}, expected {buffer.nbytes}")
        self.traffic.bytes_received += buffer.nbytes

    def start_receive(self, source: int, tag: int, buffer: Array) -> MPI.Request:
        """Start receiving a message of the buffer's length from one rank."""
        self.traffic.bytes_received += buffer.nbytes
        return self.comm.Irecv([buffer, MPI.BYTE], source, tag)

    # ---- collectives

    def start_sum(self, array: Array) -> MPI.Request:
        """Start summing an array over all ranks, in place."""
        self.traffic.bytes_sent += array.nbytes
        self.traffic.bytes_received += array.nbytes
        self.traffic.messages_sent += 1
        return self.comm.Iallreduce(MPI.IN_PLACE, array)

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

    def twin(self) -> "Transport":
        """The same ranks, clock and counts, with collectives that are matched apart from this one's. Collective."""
        twin = copy.copy(self)
        twin.comm = self.comm.Dup()
        return twin

    def _count(self, sent: int, received: int) -> None:
        self.traffic.bytes_sent += sent
        self.traffic.bytes_received += received
        self.traffic.messages_sent += 1

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

    def local_barrier(self, what: str) -> None:
        """Wait for the ranks of this node."""
        self.wait(self._local.Ibarrier(), what)

    # ---- windows

    def shared_segments(self, size: int) -> "SharedSegments":
        """Memory that the ranks of the one node address directly. Collective."""
        return SharedSegments(self, size)

    def remote_segments(self, size: int) -> "RemoteSegments":
        """Memory that the other ranks read one-sidedly. Collective."""
        return RemoteSegments(self, size)

    def summing_segments(self, size: int) -> "SummingSegments":
        """Memory that the other ranks read and add to one-sidedly. Collective."""
        return SummingSegments(self, size)

    def progresses_passively(self, nap: float = 0.05) -> bool:
        """Whether a get completes while its target is outside MPI: rank 0 sleeps `nap` seconds, the others read."""
        memory, taken = self.remote_segments(4096), np.zeros(1)
        self.barrier("the probe of passive progress")
        if self.rank == 0:
            self.sleep(nap)
        else:
            start = self.clock()
            memory.read(0, 0, np.empty(4096, dtype=np.uint8))
            taken[0] = self.clock() - start
        self.wait(self.comm.Iallreduce(MPI.IN_PLACE, taken, MPI.MAX), "the probe of passive progress")
        memory.close()
        return bool(taken[0] < nap / 2)

    def _sum_of_small(self, value: int) -> int:
        total = np.array([value], dtype=np.int64)
        self.wait(self.comm.Iallreduce(MPI.IN_PLACE, total), "the start")
        return int(total[0])


class Backoff:
    """Sleeps between polls: an eighth of the time waited so far, so that no wait is prolonged by much more."""

    def __init__(self, transport: Transport, what: str | Callable[[], str]) -> None:
        self._transport, self._what = transport, what
        self.reset()

    def reset(self) -> None:
        """Start again: something happened."""
        self._began: float | None = None

    def pause(self) -> None:
        """Sleep a little. Raises Overdue naming what is waited for."""
        t = self._transport
        now = t.clock()
        if self._began is None:
            self._began = now
        waited = now - self._began
        if waited > t.deadline:
            what = self._what() if callable(self._what) else self._what
            raise Overdue(f"rank {t.rank}: waited {t.deadline:g} s for {what} (run.deadline)")
        t.sleep(min(max(waited / 8, SHORTEST_SLEEP), LONGEST_SLEEP))


class SharedSegments:
    """Memory of `sizes[rank]` bytes on each rank of one node that all its ranks address directly."""

    def __init__(self, transport: Transport, size: int) -> None:
        self._window = MPI.Win.Allocate_shared(size, 1, comm=transport.comm)
        self._window.Lock_all(MPI.MODE_NOCHECK)

    def segment(self, rank: int) -> Array:
        """One rank's memory as uint8."""
        memory: Any = self._window.Shared_query(rank)[0]
        return np.frombuffer(memory, dtype=np.uint8)

    def sync(self) -> None:
        """A memory barrier: what was stored before is seen before what is stored after."""
        self._window.Sync()

    def close(self) -> None:
        """Collective; only at a clean end, since freeing waits for every rank."""
        self._window.Unlock_all()
        self._window.Free()


class RemoteSegments:
    """Memory of `size` bytes on each rank, read by the others with one-sided gets in one passive epoch."""

    def __init__(self, transport: Transport, size: int) -> None:
        self._transport = transport
        self._window = MPI.Win.Allocate(size, 1, comm=transport.comm)
        self._window.Lock_all(MPI.MODE_NOCHECK)
        memory: Any = self._window.tomemory()
        self.own = np.frombuffer(memory, dtype=np.uint8)

    def read(self, rank: int, offset: int, out: Array) -> None:
        """Copy `out.nbytes` bytes from another rank's memory."""
        request = self._window.Rget([out, MPI.BYTE], rank, (offset, out.nbytes, MPI.BYTE))
        self._transport.wait(request, f"a one-sided read from rank {rank}")

    def sync(self) -> None:
        """A memory barrier on this rank's own memory."""
        self._window.Sync()

    def close(self) -> None:
        """Collective; only at a clean end."""
        self._window.Unlock_all()
        self._window.Free()


class SummingSegments(RemoteSegments):
    """Memory that the other ranks also add to: no addition to an element is lost, whoever adds at the same time.

    On one node the sum is made by the caller's processor, under a lock of the MPI library's; a remote target's network
    card or progress engine makes it elsewhere.
    """

    def __init__(self, transport: Transport, size: int) -> None:
        super().__init__(transport, size)
        self._adding: list[MPI.Request] = []
        self._word = np.zeros(3, dtype=np.int64)

    def add(self, rank: int, offset: int, array: Array) -> None:
        """Start adding an array at a byte offset. It must stay untouched until `settle`."""
        kind = MPI.Datatype.fromcode(array.dtype.char)
        target = (offset, array.size, kind)
        self._adding.append(self._window.Raccumulate([array, kind], rank, target, MPI.SUM))

    def progress(self) -> None:
        """Give MPI a chance to move what is under way."""
        self._adding = [request for request in self._adding if not request.Test()]

    def settle(self) -> None:
        """Wait until the arrays given to `add` may be changed."""
        for request in self._adding:
            self._transport.wait(request, "one-sided additions to leave")
        self._adding.clear()

    def complete(self) -> None:
        """Wait until every rank's memory holds what this rank has added."""
        self.settle()
        self._window.Flush_all()

    def word(self, rank: int, offset: int) -> int:
        """An int64 of a rank's memory."""
        self.read(rank, offset, self._word[:1])
        return int(self._word[0])

    def swap_word(self, rank: int, offset: int, expected: int, wanted: int) -> int:
        """Store `wanted` in an int64 if it is `expected`, in one step for all ranks; what it was."""
        self._word[:] = wanted, expected, 0
        self._window.Compare_and_swap(self._word[0:1], self._word[1:2], self._word[2:3], rank, offset)
        self._window.Flush(rank)
        return int(self._word[2])
