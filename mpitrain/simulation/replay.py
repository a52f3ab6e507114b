"""A recorded training, repeated on simulated ranks: each sees the recorded events in the recorded order.

A poll that found nothing finds nothing, even if something has come; what a poll found is waited for. So each rank
computes what it computed then, whatever the simulated network does. Virtual time has no meaning here.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from mpitrain.errors import BadInput, TrainingFailed
from mpitrain.mpi.launcher import MPI, BufSpec
from mpitrain.mpi.order import TAGS, EventKind, LoggedEvent, Order, file_of
from mpitrain.mpi.recording import FINE, checksum
from mpitrain.mpi.tags import Tag
from mpitrain.mpi.witness import Witness
from mpitrain.simulation.job import Job, SimulatedRank
from mpitrain.simulation.scheduler import Scheduler

T = TypeVar("T")
PATIENCE = 60.0  # seconds of virtual time between two polls for what is to come
MEANS = {
    EventKind.NOTHING: "a look that found nothing",
    EventKind.HAPPENED: "something that had happened",
    EventKind.MESSAGE: "a message",
    EventKind.CONTENT: "what came",
    EventKind.CLOCK: "a reading of the clock",
    EventKind.STOP: "a stop request",
}


class Replayer(Witness):
    """Gives the recorded events. Raises TrainingFailed naming rank and event if the training asks for another one."""

    def __init__(self, order: Order, scheduler: Scheduler) -> None:
        self._order, self._scheduler, self.rank = order, scheduler, order.header.rank
        self._events, self._now = order.events(), LoggedEvent(-1, EventKind.NOTHING, 0)
        self._next: LoggedEvent | None = next(self._events, None)
        self._nothing = 0  # how many of the next polls find nothing
        self._read, self._looks, self._sender = 0, 0, MPI.PROC_NULL
        self._over = False
        self.answered = False  # whether a poll was answered since the last pause
        self.parameters = ""  # SHA-256 of the final parameters, on the first rank

    def message(self, find: Callable[[int], T | None], source: int, tag: int, sender: Callable[[], int]) -> T | None:
        if self._over:
            return find(source)
        if self._found_nothing():
            return None
        seen, its_tag = divmod(self._take(EventKind.MESSAGE, f"looks for a message ({_named(tag)})"), TAGS)
        if its_tag != tag or source not in (seen, MPI.ANY_SOURCE):
            which = f" of rank {seen} ({_named(its_tag)})"
            raise self._differs(f"looks for one of {_whom(source)} ({_named(tag)})", which)
        while (found := find(seen)) is None:
            self._park(f"a message of rank {seen} ({_named(tag)})")
        self._sender = seen
        return found

    def happened(self, test: Callable[[], bool]) -> bool:
        if self._over:
            return test()
        if self._found_nothing():
            return False
        self._take(EventKind.HAPPENED, "tests whether something has happened")
        while not test():
            self._park("what had happened then")
        return True

    def content(self, received: BufSpec) -> None:
        if not self._over and self._take(EventKind.CONTENT, "has received something") != checksum(received):
            raise self._differs(f"gets something else from {_whom(self._sender)}")

    def clock(self, reading: float) -> float:
        if self._over:
            return reading
        self._read += self._take(EventKind.CLOCK, "looks at the clock")
        return self._read / FINE

    def stopped(self, asked: bool) -> bool:
        self._looks += 1
        if self._over:
            return asked
        if self._nothing or self._next is None or self._next[1:] != (EventKind.STOP, self._looks):
            return False
        self._take(EventKind.STOP, "looks for a stop request")
        return True

    def end(self, status: int, parameters: Callable[[], str]) -> None:
        if self._next is not None or self._nothing:
            left = self._order.end.events - (self._now.number + 1)
            raise TrainingFailed(f"rank {self.rank}: its training ends {left:,} events before {self._order.path} does")
        self.parameters, self._over = parameters(), True

    def _found_nothing(self) -> bool:
        """Whether this poll is one of those that found nothing."""
        self.answered = True
        if not self._nothing and self._next is not None and self._next.kind is EventKind.NOTHING:
            self._nothing = self._take(EventKind.NOTHING, "looks")
        if not self._nothing:
            return False
        self._nothing -= 1
        return True

    def _take(self, kind: EventKind, does: str) -> int:
        """The value of the next event, which must be of this kind."""
        if self._nothing:
            raise self._differs(does)
        if self._next is None:
            count = self._order.end.events
            raise TrainingFailed(f"rank {self.rank}: {does} after all {count:,} events of {self._order.path}")
        self._now, self._next = self._next, next(self._events, None)
        if self._now.kind is not kind:
            raise self._differs(does)
        return self._now.value

    def _differs(self, does: str, which: str = "") -> TrainingFailed:
        return TrainingFailed(
            f"rank {self.rank}: {self._order.path}, event {self._now.number:,}: the record has "
            f"{MEANS[self._now.kind]}{which} where this rank {does}"
        )

    def _park(self, what: str) -> None:
        number, path = self._now.number, self._order.path
        self._scheduler.park(self.rank, PATIENCE, lambda: f"{what}: event {number:,} of {path}")


class ReplayingRank(SimulatedRank):
    """A rank that polls on in its waits, as the recorded rank did; only recorded successes are waited for."""

    def __init__(self, job: Job[int], order: Order) -> None:
        super().__init__(job, order.header.rank)
        self.witness: Replayer = Replayer(order, job.scheduler)
        self.probes, self.threads = order.header.probes, order.header.threads

    def pause(self, nap: float, patience: float, describe: Callable[[], str]) -> None:
        if not self.witness.answered:
            super().pause(nap, patience, describe)
        self.witness.answered = False


class Replay(Job[int]):
    """The ranks of a recorded run."""

    def __init__(self, orders: Sequence[Order]) -> None:
        header = orders[0].header
        super().__init__(header.ranks, nodes=header.nodes)
        self._orders, self.ranks = orders, list[ReplayingRank]()

    def runtime(self, rank: int) -> SimulatedRank:
        runtime = ReplayingRank(self, self._orders[rank])
        self.ranks.append(runtime)
        return runtime


def read(run: Path) -> list[Order]:
    """The record of every rank of a run. Raises BadInput naming a file that is none, damaged, or of another run."""
    if run.is_dir() and not file_of(run, 0).parent.exists():
        raise BadInput(f"{run}: is not recorded: run.record_order = true was not set")
    first = Order(file_of(run, 0))
    orders = [first, *(Order(file_of(run, rank)) for rank in range(1, first.header.ranks))]
    for rank, order in enumerate(orders):
        if replace(order.header, rank=0) != replace(first.header, rank=0) or order.header.rank != rank:
            raise BadInput(f"{order.path}: is not of the run of {first.path}")
    if len(first.header.nodes) != first.header.ranks:
        raise BadInput(f"{first.path}: is damaged: it has nodes for {len(first.header.nodes)} of {len(orders)} ranks")
    return orders


def _named(tag: int) -> str:
    return Tag(tag).name if tag in set(Tag) else f"tag {tag}"


def _whom(source: int) -> str:
    return "any rank" if source == MPI.ANY_SOURCE else f"rank {source}"
