"""Nonblocking operations under way: pushing them on while the rank computes, and how much of their time that hid.

MPI moves a message mostly when it is called. Of the two remedies, a call every few milliseconds of computing and a
thread that calls, the first is used: benchmarks/hybrid/progress.py measures both.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpitrain.mpi import Transport

#: Seconds of a wait before the rank sleeps: a round is a chain of short waits.
YIELDING = 2e-3


@dataclass(eq=False)
class Flight:
    """One operation. Until it has landed its buffers are not to be touched."""

    request: Any
    kind: str
    landed: bool = False


class Flights:
    """The operations of one rank, and what they took.

    `received`: payload bytes by kind. `seconds`: time in which any operation was under way; `waited`: time in which the
    rank did nothing but wait for one. Their difference was hidden behind computing. An operation that ended between two
    pulses counts as under way until the second. Without `overlap` every operation is waited for at once.
    """

    def __init__(self, transport: "Transport", clock: Callable[[], float], overlap: bool = True) -> None:
        self._transport, self._clock, self._overlap = transport, clock, overlap
        self._open: list[Flight] = []
        self.received: Counter[str] = Counter()
        self.seconds = self.waited = 0.0
        self._since = 0.0

    def launch(self, kind: str, start: Callable[..., Any], *arguments: Any) -> Flight:
        """Start an operation of the transport's. All ranks launch in the same order."""
        if not self._open:
            self._since = self._clock()
        before = self._transport.traffic.bytes_received
        flight = Flight(start(*arguments), kind)
        self.received[kind] += self._transport.traffic.bytes_received - before
        self._open.append(flight)
        if not self._overlap:
            self.land(flight)
        return flight

    def pulse(self) -> None:
        """Push on what is under way."""
        for flight in tuple(self._open):
            if flight.request.Test():
                self._close(flight)

    @property
    def push(self) -> Callable[[], None] | None:
        """`pulse`, or None where nothing is under way and a product need not be cut into blocks."""
        return self.pulse if self._open else None

    def land(self, flight: Flight | None) -> None:
        """Wait for an operation, if there is one. Raises Overdue."""
        if flight is None or flight.landed:
            return
        began = self._clock()
        self._transport.wait(flight.request, f"the other ranks' {flight.kind.replace('_', ' ')}", YIELDING)
        self.waited += self._clock() - began
        self._close(flight)

    def _close(self, flight: Flight) -> None:
        flight.landed = True
        self._open.remove(flight)
        if not self._open:
            self.seconds += self._clock() - self._since
