"""The thread beside a rank's own: the deadline of calls that block, and heartbeats while the rank works.

Only time in which this process runs counts.
"""

import subprocess
import sys
import threading
import time
from contextlib import suppress
from math import inf

import pytest

from mpitrain.errors import Overdue
from mpitrain.mpi.watchdog import Blocking, Watchdog, Working


class Steps:
    """A sleep that returns when the test says so, and what was counted."""

    def __init__(self) -> None:
        self.turn, self.ended = threading.Semaphore(0), list[str]()
        self.asleep, self.slept = threading.Semaphore(0), list[float]()

    def watchdog(self) -> Watchdog:
        dog = Watchdog(self.ended.append)
        dog.sleep = self.sleep
        return dog

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.asleep.release()
        self.turn.acquire()  # the thread ends with the process

    def take(self, steps: int) -> None:
        """So many steps of the watchdog's."""
        for _ in range(steps):
            self.turn.release()
            assert self.asleep.acquire(timeout=60)


def test_a_call_that_does_not_return_is_named_after_its_deadline() -> None:
    """A new call has a new deadline; between calls nothing is counted."""
    steps = Steps()
    dog = steps.watchdog()
    dog.rank = 3
    with Blocking(dog, "MPI_Win_free", 10.0):
        assert steps.asleep.acquire(timeout=60)
        steps.take(15)
    steps.take(30)
    with Blocking(dog, "MPI_Comm_dup", 10.0):
        steps.take(15)
    with Blocking(dog, "MPI_Win_allocate", 10.0):
        steps.take(20)
        assert not steps.ended
        for _ in range(3):
            steps.turn.release()
        end = time.monotonic() + 60
        while not steps.ended and time.monotonic() < end:
            time.sleep(0.01)
    line = "rank 3: MPI_Win_allocate has not returned for 10 s: another rank is silent; run.deadline sets the seconds"
    assert steps.ended == [line] and max(steps.slept) <= 1.0


class Beats:
    """Counts heartbeats, and which thread gave them; raises from the `failing`th on."""

    def __init__(self, failing: int = 1 << 30) -> None:
        self.given, self._failing = list[int](), failing

    def __call__(self) -> None:
        self.given.append(threading.get_ident())
        if len(self.given) >= self._failing:
            raise Overdue("rank 0: waited 10 s for rank 1", [1])


def test_heartbeats_are_given_while_a_rank_works_and_only_then() -> None:
    """By the thread, once by the rank itself as it begins; work within work is the same."""
    steps, beats = Steps(), Beats()
    dog = steps.watchdog()
    with Working(dog, beats, 0.5):
        assert steps.asleep.acquire(timeout=60)
        steps.take(3)
        with Working(dog, beats, 0.5):
            steps.take(3)
        steps.take(3)
    steps.take(5)
    assert len(beats.given) == 1 + 9 and beats.given[0] == threading.get_ident() != beats.given[1]
    assert len(set(beats.given)) == 2 and not steps.ended


def test_whom_a_rank_misses_at_work_it_names_when_the_work_is_done() -> None:
    """No heartbeat follows."""
    steps, beats = Steps(), Beats(3)
    dog = steps.watchdog()
    with pytest.raises(Overdue, match="for rank 1"), Working(dog, beats, 0.01):
        assert steps.asleep.acquire(timeout=60)
        steps.take(20)
    assert len(beats.given) == 3 and not steps.ended


def test_a_rank_whose_work_goes_on_ends_though() -> None:
    """The others of the job may all be in such work."""
    steps = Steps()
    dog = steps.watchdog()
    with suppress(Overdue), Working(dog, Beats(3), 1.0):
        assert steps.asleep.acquire(timeout=60)
        for _ in range(4):
            steps.turn.release()
        end = time.monotonic() + 60
        while not steps.ended and time.monotonic() < end:
            time.sleep(0.01)
    assert steps.ended == ["rank 0: waited 10 s for rank 1"]


def test_a_rank_that_the_others_wait_for_ends_its_work_first() -> None:
    """However long that takes, where the others go on without a lost rank and wait for it."""
    steps = Steps()
    dog = steps.watchdog()
    with pytest.raises(Overdue, match="for rank 1"), Working(dog, Beats(3), 1.0, inf):
        assert steps.asleep.acquire(timeout=60)
        steps.take(20)
    assert not steps.ended


#: A rank that stands still in a blocking call, in the place of one whose peer is frozen.
STUCK = """
import time
from mpitrain.mpi.process import PROCESS
with PROCESS.blocking("MPI_Win_free", 0.5):
    time.sleep(600)
"""


def test_a_process_in_a_call_that_does_not_return_ends_itself() -> None:
    """With one line and status 1."""
    done = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=120)
    line = "mpitrain: rank 0: MPI_Win_free has not returned for 0.5 s: another rank is silent; run.deadline"
    assert done.returncode == 1 and done.stderr.startswith(line), done.stderr
