"""Nonblocking operations in progress: calling MPI for them while the rank computes, and how much of their time that
hid.

MPI moves a message mostly when it is called. Of the two remedies, a call every few milliseconds of computing and a
thread that calls, the first is used: benchmarks/hybrid/progress.py measures both.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mpitrain.mpi import Transport

OTHER = "other"  # the kind of small transfers: targets, losses, sums of squares


@dataclass(eq=False)
class Transfer:
    """One operation. Its buffers must stay untouched until it is done."""

    request: Any
    kind: str
    done: bool = False


class Transfers:
    """The operations of one rank, their bytes and their time.

    `received`: payload bytes by kind. `seconds`: time in which any operation was under way; `waited`: time in which the
    rank did nothing but wait for one. Their difference was hidden behind computing. An operation that ended between two
    calls of `progress` counts as under way until the second. Without `overlap` every operation is waited for at once.
    """

    def __init__(self, transport: Transport, overlap: bool = True) -> None:
        self.transport, self._clock, self._overlap = transport, transport.clock, overlap
        self._open: list[Transfer] = []
        self.received: Counter[str] = Counter()
        self.seconds = self.waited = 0.0
        self._since = 0.0

    def start(self, kind: str, start: Callable[..., Any], *arguments: Any) -> Transfer:
        """Start an operation of the transport's. All ranks start them in the same order."""
        if not self._open:
            self._since = self._clock()
        before = self.transport.traffic.bytes_received
        transfer = Transfer(start(*arguments), kind)
        self.received[kind] += self.transport.traffic.bytes_received - before
        self._open.append(transfer)
        if not self._overlap:
            self.wait(transfer)
        return transfer

    def progress(self) -> None:
        """Let the operations in progress advance."""
        for transfer in tuple(self._open):
            if transfer.request.Test():
                self._close(transfer)

    @property
    def push(self) -> Callable[[], None] | None:
        """`progress`, or None if nothing is in progress, so that a matrix product need not be cut into blocks."""
        return self.progress if self._open else None

    def wait(self, transfer: Transfer | None) -> None:
        """Wait for an operation, if there is one. Raises Overdue."""
        if transfer is None or transfer.done:
            return
        began = self._clock()
        what = "targets or losses" if transfer.kind == OTHER else transfer.kind.replace("_", " ")
        self.transport.wait(transfer.request, f"the other ranks' {what}")
        self.waited += self._clock() - began
        self._close(transfer)

    def _close(self, transfer: Transfer) -> None:
        transfer.done = True
        self._open.remove(transfer)
        if not self._open:
            self.seconds += self._clock() - self._since
