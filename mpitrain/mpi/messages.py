"""Messages between two ranks."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import TypeVar

from mpitrain.flat import Array
from mpitrain.mpi.collectives import CountedCollectives
from mpitrain.mpi.communicator import Matched, Request
from mpitrain.mpi.heartbeats import BEATS, look
from mpitrain.mpi.launcher import MPI
from mpitrain.mpi.waiting import Member, overdue

T = TypeVar("T")
ENTER_MPI = 4e-3  # seconds; a rank that holds a window enters MPI every 5 ms, so that others can use it


class Messages(CountedCollectives, Member):
    """Messages between this rank and one other."""

    def send(self, to: int, tag: int, buffer: bytes | Array) -> Request:
        """Start sending a contiguous buffer. It must stay untouched until the request has completed."""
        self.carrier.settle(buffer)
        self.traffic.count(len(buffer) if isinstance(buffer, bytes) else buffer.nbytes, 0, to=to)
        return self.begin_send(to, tag, buffer)

    def post(self, to: int, tag: int, message: bytes) -> None:
        """Send a small message and keep it until it has gone."""
        while self._in_flight and self._in_flight[0][0].Test():
            self._in_flight.popleft()
        self._in_flight.append((self.send(to, tag, message), message))

    def flush(self) -> None:
        """Wait until all posted messages have gone."""
        for request, _ in self._in_flight:
            self.wait(request, "a posted message to leave")
        self._in_flight.clear()

    def poll(self, tag: int, source: int = MPI.ANY_SOURCE, most: int = 1 << 16) -> tuple[int, bytes] | None:
        """A waiting message as (sender, bytes), or None. Raises ValueError for one longer than `most` bytes."""
        if (found := self._take(tag, source)) is None:
            return None
        sender, count, message = found
        if count > most:
            raise ValueError(f"a message of {count} bytes from rank {sender}, where {most} is the most")
        buffer = bytearray(count)
        message.Recv([buffer, MPI.BYTE])
        return sender, bytes(buffer)

    def heartbeat(self, working: bool = True) -> None:
        """Tell the others that this rank lives, if it is time to, so that they go on waiting for it.

        Call it between units of work, such as minibatches, slices of an evaluation, or pieces of a file. After `watch`,
        raises Overdue naming the ranks whose heartbeats are missing.
        """
        now, beats = self.waking(), self.heartbeats
        if beats.attend(now, self.deadline, working) and (silent := beats.missing(now, self.deadline)):
            raise overdue(self, self.deadline, silent, "a heartbeat")

    def at_work(self, jobs: Sequence["Future[T]"], awaited: Callable[[], Sequence[int]] = list) -> None:
        """Wait for this rank's own threads, giving heartbeats, however long they take: a slow disk is not silence.

        While the threads wait for files of the ranks `awaited`, this rank waits for those ranks, under the deadline.
        """

        def ended() -> bool:
            return self.runtime.join(jobs, ENTER_MPI, alone=not awaited())

        def serve() -> bool:
            self.comm.Iprobe()
            if awaited():
                return False
            self.heartbeat()
            return True

        self.until(ended, "what they write", awaited, serve)

    def working(self) -> AbstractContextManager[object]:
        """Context of work that calls no MPI, such as compiling or reading, however long: heartbeats are given."""
        return self.runtime.working(self.heartbeat, self.deadline / BEATS / 2)

    def alive_while(self, action: Callable[[], T]) -> T:
        """Run `action`, which calls no MPI, as in `working`, while others can use this rank's windows. Returns or
        raises what `action` does."""

        def serve() -> None:
            self.comm.Iprobe()
            self.heartbeat()

        with self.runtime.working(serve, ENTER_MPI):
            return action()

    def watch(self) -> None:
        """Expect heartbeats of every rank from now on until `leave`: at any time each rank waits, is `working` or calls
        `heartbeat`, so that all others find a rank that falls silent, whatever they do."""
        self.heartbeats.watch(self.waking())

    def leave(self) -> None:
        """Take the others' last heartbeats: MPICH kills a job that ends while messages are in transit. Collective."""
        beats, what = self.heartbeats, "the end of the program"
        self.flush()
        beats.watch(None)
        beats.quiet = True
        self.until(beats.settle, what, [])
        beats.leave()

        def all_left() -> bool:
            beats.listen(self.waking())
            return beats.settle() and not beats.staying()

        self.until(all_left, what, beats.staying)
        beats.quiet = False
        self.runtime.finalize_within(self.deadline)

    def waiting(self, tag: int) -> bool:
        """Whether any message with this tag waits."""
        return any(self.comm.Iprobe(MPI.ANY_SOURCE, tag) for _ in range(self.runtime.probes))

    def send_matched(self, to: int, tag: int, buffer: bytes | Array) -> Request:
        """Start a synchronous-mode send: the request completes once the receiver has taken the message up."""
        self.traffic.count(memoryview(buffer).nbytes, 0, to=to)
        return self.comm.Issend([buffer, MPI.BYTE], to, tag)

    def match(self, tag: int, allot: Callable[[int, int], Array]) -> tuple[int, Request, Array] | None:
        """Start receiving a waiting message into `allot(sender, bytes)`, uint8; returns sender, request, memory."""
        if (found := self._take(tag)) is None:
            return None
        sender, count, message = found
        memory = allot(sender, count)[:count]
        return sender, message.Irecv([memory, MPI.BYTE]), memory

    def _take(self, tag: int, source: int = MPI.ANY_SOURCE) -> tuple[int, int, Matched] | None:
        """A waiting message, matched and counted: sender, bytes, message."""
        status = MPI.Status()
        message = look(self.comm, source, tag, status, self.runtime.probes)
        if message is None:
            return None
        count = status.Get_count(MPI.BYTE)
        self.traffic.bytes_received += count
        self.heartbeats.heard(status.source, self.waking.last)
        return status.source, count, message

    def receive(self, source: int, tag: int, what: str) -> bytes:
        """Wait for a small message from one rank."""
        arrived: list[bytes] = []

        def came() -> bool:
            if (message := self.poll(tag, source)) is not None:
                arrived.append(message[1])
            return bool(arrived)

        self.until(came, what, [source])
        return arrived[0]

    def receive_into(self, source: int, tag: int, buffer: Array, what: str) -> None:
        """Wait for a message of exactly the buffer's length. Raises ValueError when it has another."""
        self.carrier.settle(buffer)
        request, status = self.comm.Irecv([buffer, MPI.BYTE], source, tag), MPI.Status()
        self.until(lambda: request.Test(status), what, [source], yielding=self.yielding)  # over TCP: see `wait`
        if status.Get_count(MPI.BYTE) != buffer.nbytes:
            raise ValueError(f"{status.Get_count(MPI.BYTE)} bytes from rank {source}, expected {buffer.nbytes}")
        self.traffic.bytes_received += buffer.nbytes

    def start_receive(self, source: int, tag: int, buffer: Array) -> Request:
        """Start receiving a message of the buffer's length from one rank."""
        self.carrier.settle(buffer)
        self.traffic.bytes_received += buffer.nbytes
        return self.begin_receive(source, tag, buffer)
