"""Waits under a deadline: others' silence is counted, this rank's own absence is not."""

from collections.abc import Callable, Iterator

import pytest

from mpitrain.errors import Overdue
from mpitrain.mpi.process import PROCESS, Process
from mpitrain.mpi.waiting import LOOKS, Member, WakingClock
from mpitrain.mpi.watchdog import Blocking


class Time(Process):
    """A clock that moves by what is slept, and by jumps in which the process is suspended."""

    def __init__(self, *jumps: float) -> None:
        self.now, self._jumps = 100.0, iter(jumps)

    def clock(self) -> float:
        return self.now

    def pause(self, nap: float, patience: float, describe: Callable[[], str]) -> None:
        self.now += nap + next(self._jumps, 0.0)

    def blocking(self, call: str, deadline: float) -> Blocking:
        return PROCESS.blocking(call, deadline)


def looks(*times: float) -> Iterator[float]:
    """What a clock of at most 2 s between looks says at these times."""
    read = iter((times[0], *times))
    clock = WakingClock(lambda: next(read), lambda: 2.0)
    return (clock() for _ in times)


def test_a_clock_that_counts_at_most_so_much_between_two_looks() -> None:
    """0, 1 and 1.5 s are counted whole, 100 s as 2."""
    assert list(looks(10.0, 11.0, 12.5, 112.5, 113.0)) == [0.0, 1.0, 2.5, 4.5, 5.0]


def test_a_suspended_wait_is_not_overdue() -> None:
    """Not by suspensions that are longer than the deadline, unless there are as many as looks to a deadline."""
    time = Time(*[1000.0] * (LOOKS - 1))
    member = Member(runtime=time)
    member.deadline = 5.0  # as when the configuration has been read
    with pytest.raises(Overdue, match=r"waited 5 s for nobody"):
        member.until(lambda: False, "nobody")
    assert time.now == pytest.approx(100 + (LOOKS - 1) * 1000 + 5 / LOOKS, abs=0.1)
