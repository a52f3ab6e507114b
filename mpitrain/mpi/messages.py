"""Messages between two ranks."""

from collections.abc import Callable
from typing import Any

import numpy as np

from mpitrain.flat import Array
from mpitrain.mpi.start import MPI
from mpitrain.mpi.waiting import LOOKS, Member

SIGN = 40  # message tag
PROBES = 3  # MPICH looks first and takes one more message in afterwards: every other look misses what has come


class Messages(Member):
    """What a rank sends to and receives from one other."""

    def send(self, to: int, tag: int, buffer: Any) -> MPI.Request:
        """Start sending a contiguous buffer. It must stay untouched until the request has completed."""
        self.traffic.count(len(buffer) if isinstance(buffer, bytes) else buffer.nbytes, 0)
        return self.begin_send(to, tag, buffer)

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
        message = self._look(source, tag, status)
        if message is None:
            return None
        count = status.Get_count(MPI.BYTE)
        if count > most:
            raise ValueError(f"a message of {count} bytes from rank {status.source}, where {most} is the most")
        buffer = bytearray(count)
        message.Recv([buffer, MPI.BYTE])
        self.traffic.bytes_received += count
        return status.source, bytes(buffer)

    def sign(self) -> None:
        """Give the others a sign of life, if it is time for one: who waits for this rank goes on waiting.

        For what may take longer than the deadline, such as an evaluation.
        """
        if self.clock() - self._signed < self.deadline / LOOKS:
            return
        self._signed = self.clock()
        self._given += 1
        for rank in range(self.size):
            if rank != self.rank:
                self.post(rank, SIGN, b"")

    def hear_out(self) -> None:
        """Take the signs that nobody has waited for: MPICH kills a job that ends before its messages. Collective."""
        given = np.array([self._given], dtype=np.int64)
        self.wait(self.comm.Iallreduce(MPI.IN_PLACE, given), "the number of signs of life")
        backoff = self.backoff("signs of life")
        while self._heard < given[0] - self._given:
            if not self._signs():
                backoff.pause()
        self.flush()

    def _signs(self) -> bool:
        before = self._heard
        while self.poll(SIGN) is not None:
            self._heard += 1
        return self._heard > before

    def waiting(self, tag: int) -> bool:
        """Whether any message with this tag waits."""
        return any(self.comm.Iprobe(MPI.ANY_SOURCE, tag) for _ in range(PROBES))

    def send_matched(self, to: int, tag: int, buffer: Any) -> MPI.Request:
        """Start a synchronous-mode send: the request completes once the receiver has taken the message up."""
        self.traffic.count(memoryview(buffer).nbytes, 0)
        return self.comm.Issend([buffer, MPI.BYTE], to, tag)

    def match(self, tag: int, allot: Callable[[int, int], Array]) -> tuple[int, MPI.Request, Array] | None:
        """Start receiving a waiting message into `allot(sender, bytes)`, uint8: sender, request, that memory."""
        status = MPI.Status()
        message = self._look(MPI.ANY_SOURCE, tag, status)
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
        return self.begin_receive(source, tag, buffer)

    def begin_send(self, to: int, tag: int, buffer: Any) -> MPI.Request:
        """As `send`, uncounted."""
        return self.comm.Isend([buffer, MPI.BYTE], to, tag)

    def begin_receive(self, source: int, tag: int, buffer: Array) -> MPI.Request:
        """As `start_receive`, uncounted."""
        return self.comm.Irecv([buffer, MPI.BYTE], source, tag)

    def _look(self, source: int, tag: int, status: MPI.Status) -> MPI.Message | None:
        """A waiting message, matched."""
        for _ in range(PROBES):
            message = self.comm.Improbe(source, tag, status)
            if message is not None:
                return message
        return None
