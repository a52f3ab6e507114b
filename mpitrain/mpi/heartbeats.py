"""Heartbeats: who was heard of and when, so that a wait that is overdue can name who is silent.

A rank tells all others that it lives, a few times a deadline: while it waits, and while it works wherever
`Transport.heartbeat` is called (between minibatches, in an evaluation, in writing). No other message is needed to find
a frozen rank: it is the one that says nothing, in whichever collective the others wait for it.
"""

from collections.abc import Iterable, Sequence
from math import inf

from mpitrain.mpi.communicator import Communicator, Matched, Request
from mpitrain.mpi.launcher import MPI
from mpitrain.mpi.tags import Tag

WORKING, WAITING, LEAVING = b"w", b"i", b"l"
BEATS = 10  # heartbeats in a deadline
LISTENING = 1.0  # seconds between two polls for heartbeats, at most
PROBES = 3  # MPICH probes before it takes one more message in: every other probe misses what has come


def look(comm: Communicator, source: int, tag: int, status: MPI.Status, probes: int = PROBES) -> Matched | None:
    """A message that has arrived, matched; None if there is none."""
    for _ in range(probes):
        message = comm.Improbe(source, tag, status)
        if message is not None:
            return message
    return None


class Heartbeats:
    """What this rank knows of the others. Times are those of `WakingClock`.

    Where no rank can fall silent, they are `steadfast`: nothing is sent, and nobody is missed.
    """

    def __init__(self, comm: Communicator, ranks: Sequence[int], now: float, steadfast: bool = False) -> None:
        self._comm, ranks = comm, [] if steadfast else ranks
        self.others = [rank for rank in ranks if rank != comm.rank]
        self._heard = dict.fromkeys(ranks, now)
        self.worked = now  # when any of the others was last heard to be at work
        self._state = dict.fromkeys(ranks, WORKING)
        self._sending: dict[int, Request] = {}
        self._beaten, self._due = now - 1e9, inf if steadfast else now
        self._watched_since: float | None = None
        self._leaving, self._left = 0, dict.fromkeys(ranks, 0)  # how often this rank and each other has left
        self.quiet = False  # gives no heartbeats
        self._byte = bytearray(1)

    def heard(self, rank: int, now: float) -> None:
        """Note that something has come from a rank, which therefore lives."""
        if rank in self._heard:
            self._heard[rank] = now

    def attend(self, now: float, deadline: float, working: bool) -> bool:
        """Say that this rank lives and listen to the others, if it is time for it; returns whether it was."""
        if now < self._due:
            return False
        self._due = now + min(deadline / BEATS / 2, LISTENING)
        if self.others:
            self.listen(now)
        if now - self._beaten >= deadline / BEATS and not self.quiet:
            self._beaten = now
            self._say(WORKING if working else WAITING)
        return True

    def listen(self, now: float) -> bool:
        """Take the heartbeats that have come; whether any have."""
        status, any_came = MPI.Status(), False
        while (message := look(self._comm, MPI.ANY_SOURCE, Tag.HEARTBEAT, status)) is not None:
            message.Recv([self._byte, MPI.BYTE])
            sender, any_came = status.source, True
            self._state[sender], self._heard[sender] = bytes(self._byte), now
            if self._byte == WORKING:
                self.worked = now
            self._left[sender] += self._byte == LEAVING
        return any_came

    def silent(self, ranks: Iterable[int], since: float, now: float, deadline: float) -> list[int]:
        """Those of the ranks that have said nothing for a deadline that began at `since` or when they last did."""
        return [rank for rank in ranks if now - max(since, self._heard[rank]) > deadline]

    def waits(self, rank: int) -> bool:
        """Whether a rank was waiting when it was last heard of."""
        return self._state.get(rank) == WAITING

    def watch(self, now: float | None) -> None:
        """Expect heartbeats from every rank at all times, from `now` on; with None, no longer."""
        self._watched_since = now if self._watched_since is None or now is None else self._watched_since

    @property
    def watches(self) -> bool:
        """Whether every rank is to give heartbeats at all times."""
        return self._watched_since is not None

    def missing(self, now: float, deadline: float) -> list[int]:
        """The ranks that have owed a heartbeat for longer than the deadline, and have not left."""
        if (since := self._watched_since) is None:
            return []
        return [rank for rank in self.silent(self.others, since, now, deadline) if self._left[rank] <= self._leaving]

    def leave(self) -> None:
        """Say that no more heartbeats will come from this rank until all have said so."""
        self._leaving += 1
        self._say(LEAVING)

    def staying(self) -> list[int]:
        """The ranks whose last heartbeat has not come."""
        return [rank for rank in self.others if self._left[rank] < self._leaving]

    def settle(self) -> bool:
        """Whether all that was sent has left."""
        self._sending = {rank: request for rank, request in self._sending.items() if not request.Test()}
        return not self._sending

    def _say(self, state: bytes) -> None:
        """Send a heartbeat to each of the others that has taken the one before."""
        self.settle()
        for rank in self.others:
            if rank not in self._sending:
                self._sending[rank] = self._comm.Isend([state, MPI.BYTE], rank, Tag.HEARTBEAT)
