"""A thread beside the rank's own, for when that one cannot look after its deadlines and its heartbeats.

- While a call of MPI blocks that has no nonblocking form, such as those that make and free windows, the thread counts
  the seconds. When they are too many, it ends its own process, upon which the launcher ends the job: it may not call
  MPI meanwhile.
- While the rank works without calling MPI, such as compiling, the thread calls MPI in its place (thread level
  "serialized"): it gives the rank's heartbeats, and looks for those of others. A process that is stopped gives none.

It sleeps in short steps and counts those, so that the time in which a job is suspended does not count.
"""

import os
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType

from mpitrain.errors import named
from mpitrain.mpi.communicator import Runtime
from mpitrain.start import stopped_ranks

STEPS, LONGEST = 20, 1.0  # steps in a deadline, and the longest of them in seconds


def outlasted(rank: int, call: str, deadline: float, key: str, stopped: Sequence[int] = ()) -> str:
    """What a rank says before it ends the job because a call has not returned. `key`: what sets the deadline;
    `stopped`: ranks known to be stopped."""
    if stopped:
        return f"rank {rank}: waited {deadline:g} s for {named(stopped)} ({call}); {key} sets the seconds"
    why = f"another rank is silent; {key} sets the seconds"
    return f"rank {rank}: {call} has not returned for {deadline:g} s: {why}"


class Blocking:
    """Context around one blocking call. After `deadline` seconds it ends the job if a rank of this node is stopped, and
    after `patience` seconds, by default the same, in any case; or, where the call `goes_on` without them, it ends those
    stopped ranks."""

    __slots__ = ("_dog", "deadline", "goes_on", "name", "patience", "step")

    def __init__(
        self, dog: "Watchdog", name: str, deadline: float, patience: float = 0.0, goes_on: bool = False
    ) -> None:
        self._dog, self.name, self.deadline, self.goes_on = dog, name, deadline, goes_on
        self.patience, self.step = max(patience, deadline), min(deadline / STEPS, LONGEST)
        dog.start()

    def __enter__(self) -> None:
        self._dog.task = self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._dog.task = None

    def look(self, seconds: float) -> str:
        """The line to say before the end, now that the call has lasted this many seconds; "" while it may last."""
        if seconds <= self.deadline:
            return ""
        stopped = stopped_ranks()
        if stopped and self.goes_on:
            self.deadline, self.patience = seconds + self.deadline, seconds + self.patience
            for process in stopped.values():
                with suppress(ProcessLookupError):  # another rank has ended it
                    os.kill(process, signal.SIGKILL)
            return ""
        rank, key = self._dog.rank, self._dog.deadline_key
        if stopped:
            return outlasted(rank, self.name, self.deadline, key, [*stopped])
        return outlasted(rank, self.name, self.patience, key) if seconds > self.patience else ""


class Working:
    """Context of work in which the rank calls no MPI: the thread calls `beat` every `step` seconds. An error of `beat`
    is raised at the end of the work; if that does not come within `grace` seconds, the job ends.

    Within another such context it changes nothing.
    """

    def __init__(self, dog: "Watchdog", beat: Callable[[], None], step: float, grace: float = Runtime.grace) -> None:
        self._dog, self._beat, self.step, self._grace = dog, beat, step, grace
        self._error: Exception | None = None
        self._since = 0.0
        dog.start()

    def __enter__(self) -> None:
        self._inner = self._dog.task is not None
        if not self._inner:
            self._beat()  # also where one such work follows another, each too short for the thread to see it
            self._dog.begin(self)

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if not self._inner:
            self._dog.end()
            if self._error is not None and kind is None:
                raise self._error

    def look(self, seconds: float) -> str:
        """Call `beat`. Returns the line to say before the end if an error of `beat` has waited too long."""
        if self._error is None:
            try:
                self._beat()
            except Exception as error:
                self._error, self._since = error, seconds
        return str(self._error) if self._error is not None and seconds - self._since > self._grace else ""


class Watchdog:
    """Ends the process by `end(line)` when a call outlasts its deadline. Arming it for a call is one assignment."""

    def __init__(self, end: Callable[[str], None]) -> None:
        self.task: Blocking | Working | None = None
        self.rank, self._end, self._woken = 0, end, threading.Event()
        self.deadline_key = Runtime.deadline_key
        self.sleep: Callable[[float], object] = self._woken.wait
        self._looking = threading.Lock()
        self._thread: threading.Thread | None = None

    def begin(self, task: Working) -> None:
        """Watch this work from now on."""
        self.task = task
        self._woken.set()

    def end(self) -> None:
        """Watch nothing any more; on return the thread is not in MPI."""
        with self._looking:
            self.task = None

    def start(self) -> None:
        """Start the thread, unless it runs."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
            self._thread.start()

    def _watch(self) -> None:
        seen, seconds, step = None, 0.0, LONGEST / 4
        while True:
            self.sleep(step)
            self._woken.clear()
            with self._looking:
                task = self.task
                seen, seconds = task, seconds + step if task is seen else 0.0
                line = "" if task is None else task.look(seconds)
            if line:
                self._end(line)
                return
            step = LONGEST / 4 if task is None else task.step
