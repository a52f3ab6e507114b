"""Ranks that take turns in one process, and virtual time.

Each rank is a thread. One runs at a time, until it sleeps or waits. Then the next rank that is ready runs, or, if none
is, time advances to the next event. Nothing depends on how fast the process is: the same programs give the same order
of turns.
"""

import heapq
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from math import inf
from types import MappingProxyType
from typing import Generic, TypeVar

T = TypeVar("T")


class Deadlock(RuntimeError):
    """All ranks that have not ended wait, or have died, and no event will wake any of them."""


class Late(RuntimeError):
    """A rank has waited beyond its limit."""


class Ended(BaseException):
    """Raised in the other ranks when one has failed, to unwind them."""


class _Rank:
    def __init__(self) -> None:
        self.turn = threading.Lock()
        self.turn.acquire()
        self.noticed, self.done = False, False
        self.limit = inf
        self.ends = (0.0, 0)  # (time, event number) at which the current wait gives up
        self.alarm: tuple[float, int] | None = None  # (time, number) of the event that checks for this; no later
        self.describe: Callable[[], str] | None = None


def _why(number: int, rank: _Rank) -> str:
    """Why an unfinished rank does not go on. One that does not wait has died."""
    return f"rank {number} has died" if rank.describe is None else f"rank {number} waits for {rank.describe()}"


class Scheduler(Generic[T]):
    """Runs `ranks` programs. All methods but `run` are for the rank that is running, and for events.

    `stops`: by rank, from when until when it gets no turn, for good if that is infinite. With stops, the ends of waits
    are events: other ranks wait as long as they would for a process that hangs, before there is a deadlock.
    """

    def __init__(self, ranks: int, stops: Mapping[int, Sequence[tuple[float, float]]] = MappingProxyType({})) -> None:
        self.now = 0.0
        self._stops = stops
        self._ranks = [_Rank() for _ in range(ranks)]
        self._ready = deque(range(ranks))
        self._events: list[tuple[float, int, bool, Callable[[], None]]] = []
        self._live = 0  # events other than the ends of waits
        self._numbers = count()
        self._failure: BaseException | None = None
        self._over = threading.Event()

    def run(self, programs: Sequence[Callable[[], T]]) -> list[T]:
        """What the ranks' programs return. Raises the first exception of a program; Deadlock when no rank can go on."""
        results: dict[int, T] = {}

        def main(rank: int) -> None:
            mine = self._ranks[rank]
            mine.turn.acquire()
            try:
                if self._failure is None:
                    results[rank] = programs[rank]()
            except Ended:
                pass
            except BaseException as error:
                self._failure = self._failure or error
            mine.done = True
            self._hand_over()

        threads = [threading.Thread(target=main, args=(rank,), name=f"rank {rank}") for rank in range(len(programs))]
        for thread in threads:
            thread.daemon = True  # an interrupt ends the process, whatever the ranks do
            thread.start()
        self._hand_over()
        self._over.wait()
        for thread in threads:
            thread.join()
        if self._failure is not None:
            raise self._failure
        return [results[rank] for rank in range(len(programs))]

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Have `action` happen at a time; it may not wait."""
        self._push(max(time, self.now), next(self._numbers), True, action)

    def _push(self, time: float, number: int, live: bool, action: Callable[[], None]) -> None:
        """Add an event; at equal times the lower number comes first. Only `live` events avert a deadlock."""
        heapq.heappush(self._events, (time, number, live, action))
        self._live += live

    def sleep(self, rank: int, seconds: float) -> None:
        """Let the running rank work, or rest, for this many seconds."""
        self.at(self.now + seconds, lambda: self.resume(rank))
        self.suspend(rank)

    def resume(self, rank: int) -> None:
        """Let a suspended rank go on."""
        self._ready.append(rank)

    def park(self, rank: int, patience: float, describe: Callable[[], str]) -> None:
        """Let the running rank wait until it is woken, at most for `patience` seconds. If it has been woken since it
        last waited, it goes on at once. `describe` says what it waits for. Raises Late if its limit is reached."""
        mine = self._ranks[rank]
        if mine.noticed:
            mine.noticed = False
            return
        if self.now >= mine.limit:
            raise Late(describe())
        mine.ends, mine.describe = (min(self.now + patience, mine.limit), next(self._numbers)), describe
        if mine.alarm is None or mine.ends < mine.alarm:
            self._set_alarm(rank)
        self.suspend(rank)

    def limit(self, rank: int, until: float) -> None:
        """Let no wait of the running rank last beyond a time."""
        self._ranks[rank].limit = until

    def wake(self, rank: int) -> None:
        """Wake a rank, as an event concerns it."""
        mine = self._ranks[rank]
        if mine.describe is None:
            mine.noticed = True
        else:
            mine.describe = None
            self._ready.append(rank)

    def _set_alarm(self, rank: int) -> None:
        """Add an event for the end of a rank's wait. Few waits last so long: later waits keep this alarm, which is set
        anew if it rings before the present wait ends."""
        mine = self._ranks[rank]
        alarm = mine.alarm = mine.ends

        def ring() -> None:
            if mine.alarm != alarm:
                return
            mine.alarm = None
            if mine.describe is not None and mine.ends == alarm:
                self.wake(rank)
            elif mine.describe is not None:
                self._set_alarm(rank)

        self._push(*alarm, bool(self._stops), ring)

    def suspend(self, rank: int) -> None:
        """Suspend the running rank until `resume`; it sees then what has happened meanwhile."""
        after = self._next()
        if after == rank:
            return
        self._ranks[after].turn.release()
        self._ranks[rank].turn.acquire()
        if self._failure is not None:
            raise Ended

    def _next(self) -> int:
        """The rank whose turn it is. Raises Deadlock."""
        while True:
            while self._ready:
                rank = self._ready.popleft()
                if not (self._stops and self._stands_still(rank)):
                    return rank
            if not self._live:
                raise Deadlock("; ".join(_why(n, each) for n, each in enumerate(self._ranks) if not each.done))
            self.now, _, live, action = heapq.heappop(self._events)
            self._live -= live
            action()

    def standing(self, rank: int) -> tuple[bool, float]:
        """Whether a rank stands still now, and when that may change."""
        spans = self._stops.get(rank, ())
        if not spans:
            return False, inf
        coming = (moment for span in spans for moment in span if moment > self.now)
        return any(begins <= self.now < ends for begins, ends in spans), min(coming, default=inf)

    def _stands_still(self, number: int) -> bool:
        """Whether a rank gets no turn now; if so, have it resumed when it may get one again."""
        still, until = self.standing(number)
        if still and until < inf:
            self.at(until, lambda: self.resume(number))
        return still

    def _hand_over(self) -> None:
        """Let the next rank run after one has ended, or at the start; after a failure, one after another, to unwind."""
        left = [rank for rank in self._ranks if not rank.done]
        if not left:
            self._over.set()
            return
        if self._failure is None:
            try:
                self._ranks[self._next()].turn.release()
                return
            except Deadlock as error:
                self._failure = error
        left[0].turn.release()


class Cores:
    """The cores of a node. While more ranks compute than there are cores, all of them are slowed alike. A rank that
    stands still meanwhile uses no core, and has as much left when it goes on."""

    def __init__(self, scheduler: Scheduler, count: int) -> None:
        self._scheduler, self._count = scheduler, count
        self._left: dict[int, float] = {}  # by rank: seconds on a core of its own
        self._running: list[int] = []  # the ranks among these that do not stand still
        self._since, self._plans = 0.0, 0

    def compute(self, rank: int, seconds: float) -> None:
        """Let the running rank compute what takes this many seconds on a core of its own."""
        self._advance()
        self._left[rank] = seconds
        self._plan()
        self._scheduler.suspend(rank)

    @property
    def _speed(self) -> float:
        return min(1.0, self._count / max(len(self._running), 1))

    def _advance(self) -> None:
        now = self._scheduler.now
        done = (now - self._since) * self._speed
        for rank in self._running:
            self._left[rank] -= done
        self._since = now

    def _plan(self) -> None:
        """Add an event for when the first rank ends, or one stands still or goes on; a later plan replaces this one."""
        self._plans += 1
        standing = {rank: self._scheduler.standing(rank) for rank in self._left}
        self._running = [rank for rank, (still, _) in standing.items() if not still]
        first = min(self._running, key=lambda rank: self._left[rank], default=None)
        change = min((until for _, until in standing.values()), default=inf)
        time = inf if first is None else self._since + max(self._left[first], 0.0) / self._speed
        if min(time, change) < inf:
            self._scheduler.at(min(time, change), partial(self._end, first if time <= change else None, self._plans))

    def _end(self, rank: int | None, plan: int) -> None:
        if plan == self._plans:
            self._advance()
            if rank is not None:
                del self._left[rank]
            self._plan()
            if rank is not None:
                self._scheduler.resume(rank)
