"""The deadline of calls that block: only time in which this process runs counts, and the call is named."""

import subprocess
import sys
import threading
import time

from mpitrain.mpi.watchdog import Watchdog


class Steps:
    """A sleep that returns when the test says so, and what was counted."""

    def __init__(self) -> None:
        self.turn, self.ended = threading.Semaphore(0), list[str]()
        self.asleep, self.slept = threading.Semaphore(0), list[float]()

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.asleep.release()
        assert self.turn.acquire(timeout=60)

    def take(self, steps: int) -> None:
        """So many steps of the watchdog's."""
        for _ in range(steps):
            self.turn.release()
            assert self.asleep.acquire(timeout=60)


def test_a_call_that_does_not_return_is_named_after_its_deadline() -> None:
    """A new call has a new deadline; between calls nothing is counted."""
    steps = Steps()
    dog = Watchdog(steps.ended.append, steps.sleep)
    with dog.blocking("MPI_Win_free", 10.0):
        assert steps.asleep.acquire(timeout=60)
        steps.take(15)
    steps.take(30)
    with dog.blocking("MPI_Comm_dup", 10.0):
        steps.take(15)
    with dog.blocking("MPI_Win_allocate", 10.0):
        steps.take(20)
        assert not steps.ended
        for _ in range(3):
            steps.turn.release()
        end = time.monotonic() + 60
        while not steps.ended and time.monotonic() < end:
            time.sleep(0.01)
    line = "MPI_Win_allocate has not returned for 10 s: another rank is silent; run.deadline sets the seconds"
    assert steps.ended == [line] and max(steps.slept) <= 1.0


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
