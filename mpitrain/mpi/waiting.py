"""A rank among others, and how it waits: never without a deadline, sleeping between polls.

So signals are seen, and ranks that share a core make room for each other.
"""

import itertools
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass
from fractions import Fraction
from math import inf

import numpy as np

from mpitrain.errors import Overdue, named
from mpitrain.mpi.communicator import Communicator, Request, Runtime
from mpitrain.mpi.heartbeats import BEATS, Heartbeats
from mpitrain.mpi.launcher import MPI, require_one_job
from mpitrain.mpi.process import PROCESS
from mpitrain.mpi.witnessed import WitnessedRequest
from mpitrain.start import core_limit
from mpitrain.stopwatch import Activity, Listener, Stopwatch

YIELDING = 0.2  # seconds; longer waits are for a rank that does something else, such as an evaluation
TOLD = 16  # ranks of a wait that a trace names, at most
LOOKS = 10  # readings of `WakingClock` that a deadline takes, at least
CORES = 8192  # numbers of cores that Linux knows
SHORTEST_SLEEP, LONGEST_SLEEP = 20e-6, 2e-3  # seconds; each waking costs a busy neighbour some 30 µs


@dataclass
class Traffic:
    """What this rank exchanged: payload bytes, by whatever means they travelled, and messages. What a part counts, the
    `whole` counts, too."""

    bytes_sent: int = 0
    bytes_received: int = 0
    messages_sent: int = 0
    listener: Listener | None = None
    whole: "Traffic | None" = None

    def count(self, sent: int, received: int, what: str = "send", to: int | None = None) -> None:
        """Count one more message `to` a rank, or one collective, with this rank's payload in bytes."""
        self.bytes_sent += sent
        self.bytes_received += received
        self.messages_sent += 1
        if self.listener is not None:
            whom = {} if to is None else {"to": to}
            self.listener.instant(what, {**whom, "bytes": sent, **({"received": received} if received else {})})
        if self.whole is not None:
            self.whole.count(sent, received, what, to)

    @property
    def both(self) -> int:
        """Bytes sent and received."""
        return self.bytes_sent + self.bytes_received


class WakingClock:
    """Seconds in which this rank was running: between two readings at most `longest()` of them are counted.

    So a job that was suspended, or a rank that did not get its core, does not take that time for others' silence.
    """

    def __init__(self, clock: Callable[[], float], longest: Callable[[], float]) -> None:
        self._clock, self._longest = clock, longest
        self._looked, self.last = clock(), 0.0  # the last readings of the clock and of this one

    def __call__(self) -> float:
        now = self._clock()
        self.last += min(now - self._looked, self._longest())
        self._looked = now
        return self.last


class Member:
    """This rank in its communicator: who is where, what it has exchanged, its waits.

    `deadline` seconds without an answer raise Overdue; if all ranks wait for each other, `grace` seconds later, so that
    a rank that can name the reason does so first. By default the ranks are all that were started, each a process.
    """

    grace = 0.0

    def __init__(
        self,
        comm: Communicator | None = None,
        deadline: float = 300.0,
        runtime: Runtime = PROCESS,
        deadline_key: str = Runtime.deadline_key,
    ) -> None:
        if comm is None:
            PROCESS.start()
            require_one_job()
        runtime.deadline_key = deadline_key
        self.comm: Communicator = comm if comm is not None else MPI.COMM_WORLD
        self.rank, self.size = self.comm.rank, self.comm.size
        self.members = list(range(self.size))
        self.deadline, self.runtime = deadline, runtime
        self.clock, self.sleep = runtime.clock, runtime.sleep
        self.waking = WakingClock(self.clock, lambda: self.deadline / LOOKS)
        self.traffic, self.stopwatch = Traffic(), Stopwatch(self.clock)
        self.numbers = itertools.count()  # a counter from which all ranks draw the same numbers
        self._in_flight: deque[tuple[Request, object]] = deque()  # messages posted, kept until they have gone
        self.heartbeats = Heartbeats(self.comm, self.members, self.waking(), runtime.steadfast)  # of duplicates too
        self.yielding = YIELDING
        self.wait(self.comm.Ibarrier(), "the start of the program")
        with self.blocking("MPI_Comm_split_type"):
            self._local = self.comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.local_rank, self.local_size = self._local.rank, self._local.size
        self.leader = bool(self.local_rank == 0)
        first, firsts = np.array([self.rank], dtype=np.int64), np.zeros(self.comm.size, dtype=np.int64)
        self.wait(self._local.Ibcast(first, 0), "the start of the program")
        self.wait(self.comm.Iallgather(first, firsts), "the start of the program")
        #: For each rank, the first rank of its node.
        self.node_leaders = [int(rank) for rank in firsts]
        self.nodes = len(set(self.node_leaders))
        #: This rank's share of the cores of its node, and all that the node's ranks may use.
        self.cores, self.node_cores = (1, 1) if runtime.simulated else self._divide_cores()

    def _divide_cores(self) -> tuple[int, int]:
        own, ranks = os.sched_getaffinity(0), np.zeros(CORES, np.int32)  # of the node, that may use each core
        ranks[list(own)] = 1
        self.wait(self._local.Iallreduce(MPI.IN_PLACE, ranks, MPI.SUM), "the start of the program")
        limit = core_limit()
        mine, all_ranks = share_of_cores(own, ranks.tolist()), int(np.count_nonzero(ranks))
        return max(int(min(mine, limit / self.local_size)), 1), max(int(min(all_ranks, limit)), 1)

    def blocking(self, call: str) -> AbstractContextManager[object]:
        """Context around a call of MPI that has no nonblocking form, under the deadline."""
        return self.runtime.blocking(call, self.deadline)

    def wait(self, request: Request, what: str, whom: Sequence[int] | None = None, nbytes: int | None = None) -> None:
        """Wait for a request, which needs the ranks `whom`, by default all. Raises Overdue naming the silent ones.
        `nbytes`, its payload, is noted in a trace.

        For the first `self.yielding` seconds the rank does not sleep but lets others have the core, as a collective
        advances only when its ranks test it: 4 ranks on 2 cores sum 2.4 MB in 1.5 ms so, and in 4.7 ms with sleeps
        between the tests.
        """
        if isinstance(request, WitnessedRequest):  # no decision depends on when it ends
            request = request.plain
        if not request.Test():
            backoff = Backoff(self, what, whom, None, self.yielding, "communication", nbytes)
            while not request.Test():
                backoff.pause()

    def until(
        self,
        happened: Callable[[], bool],
        what: str,
        whom: "Whom" = None,
        serve: Callable[[], bool] | None = None,
        nap: float | None = None,
        yielding: float = 0.0,
    ) -> None:
        """Wait until `happened()` is true. Raises Overdue naming `what`, and those of the ranks `whom` (None: all) that
        are silent. If `whom` is a function, it must not poll for messages: it is called only for a trace or
        an overdue wait, while every poll is an event of a recording.

        Meanwhile `serve` is called; when it returns True, the wait begins anew. Between two polls the rank sleeps for
        `nap` seconds, by default from microseconds to two milliseconds, the longer the later; but for the first
        `yielding` seconds it only yields its core. No other loop waits for another rank.
        """
        backoff = Backoff(self, what, whom, nap, yielding)
        while not happened():
            if serve is not None and serve():
                backoff.reset()
            else:
                backoff.pause()


def share_of_cores(own: Set[int], ranks: Mapping[int, int] | Sequence[int]) -> int:
    """A rank's share of the cores `own` that it may use. Each core is divided among the ranks of the node that may use
    it, `ranks[core]` of them. Rounded down, and at least 1."""
    return max(int(sum(Fraction(1, ranks[core]) for core in own)), 1)


Whom = Sequence[int] | Callable[[], Sequence[int]] | None


def overdue(member: Member, seconds: float, silent: Sequence[int], what: str) -> Overdue:
    """The error of a wait that has taken `seconds`."""
    whom = f"{named(silent)} ({what})" if silent else what
    key = member.runtime.deadline_key
    return Overdue(f"rank {member.rank}: waited {seconds:g} s for {whom}; {key} sets the seconds", silent)


@dataclass
class Backoff:
    """Sleeps between polls: an eighth of the time waited so far, so that no wait is prolonged by much more."""

    member: Member
    what: str
    whom: Whom
    nap: float | None
    yielding: float
    kind: str = "waiting"
    nbytes: int | None = None

    def __post_init__(self) -> None:
        self._yields_until = self.member.clock() + self.yielding if self.yielding else -inf
        self.reset()

    def reset(self) -> None:
        """Start again: something happened."""
        self._began: float | None = None
        self._about: Activity | None = None

    def pause(self) -> None:
        """Sleep a little. Raises Overdue naming what is waited for, and the ranks that are silent."""
        stopwatch = self.member.stopwatch
        if stopwatch.listener is not None and self._about is None:
            self._about = self._told()
        with stopwatch.on(self.kind, self._about):
            self._sleep()

    def _sleep(self) -> None:
        t = self.member
        patience = t.deadline / BEATS / 2
        if self._yields_until > -inf and t.clock() < self._yields_until:
            t.runtime.pause(0.0, patience, self._describe)
            return
        now = t.waking()
        if self._began is None:
            self._began = now
        waited = now - self._began
        if waited > patience and t.heartbeats.attend(now, t.deadline, working=False):
            self._require_life(self._began, now)
        t.runtime.pause(self.nap or min(max(waited / 8, SHORTEST_SLEEP), LONGEST_SLEEP), patience, self._describe)

    def _describe(self) -> str:
        whom = self._awaited()
        return self.what if whom is None else f"{named(whom)} ({self.what})"

    def _told(self) -> Activity:
        """What is waited for, as a trace shows it: of many ranks the first, since a trace has many waits."""
        whom = self._awaited()
        if whom is None:
            return Activity(self.what, None, self.nbytes, inf)
        return Activity(self.what, tuple(whom[:TOLD]), self.nbytes, inf, max(len(whom) - TOLD, 0))

    def _awaited(self) -> Sequence[int] | None:
        return self.whom() if callable(self.whom) else self.whom

    def _require_life(self, began: float, now: float) -> None:
        """Raise Overdue if a rank that is waited for has been silent for a deadline. If all are heard but wait
        themselves, for a rank that they will name, raise it after two deadlines in which no rank has worked."""
        t, beats, deadline = self.member, self.member.heartbeats, self.member.deadline
        whom = self._awaited()
        silent = beats.silent(beats.others if whom is None else whom, began, now, deadline)
        if silent := silent or beats.missing(now, deadline):
            raise overdue(t, deadline, silent, self.what)
        patience = 2 * deadline if beats.others else deadline
        if now - max(began, beats.worked) > patience + t.grace:
            raise overdue(t, patience, (), self.what)
