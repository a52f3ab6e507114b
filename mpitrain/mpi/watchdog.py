"""A deadline for calls of MPI that block and have no nonblocking form, such as those that make and free windows.

A thread sleeps in short steps and counts them while a call lasts, so that the time in which a job is suspended does not
count. As it may not call MPI (thread level "funneled"), it ends its own process, upon which the launcher ends the job.
"""

import threading
import time
from collections.abc import Callable
from types import TracebackType

STEPS, LONGEST = 20, 1.0  # steps in a deadline, and the longest of them in seconds


def outlasted(call: str, deadline: float) -> str:
    """What a rank says before it ends the job because a call has not returned."""
    return f"{call} has not returned for {deadline:g} s: another rank is silent; run.deadline sets the seconds"


class Blocking:
    """Context around one blocking call."""

    __slots__ = ("_dog", "deadline", "name")

    def __init__(self, dog: "Watchdog", name: str, deadline: float) -> None:
        self._dog, self.name, self.deadline = dog, name, deadline

    def __enter__(self) -> None:
        self._dog.call = self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._dog.call = None


class Watchdog:
    """Ends the process by `end(line)` when a call outlasts its deadline. To arm it is to write an attribute."""

    def __init__(self, end: Callable[[str], None], sleep: Callable[[float], None] = time.sleep) -> None:
        self.call: Blocking | None = None
        self._end, self._sleep = end, sleep
        self._thread: threading.Thread | None = None

    def blocking(self, name: str, deadline: float) -> Blocking:
        """Context around a call of MPI."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
            self._thread.start()
        return Blocking(self, name, deadline)

    def _watch(self) -> None:
        seen, seconds, step = None, 0.0, LONGEST / 4
        while True:
            self._sleep(step)
            call = self.call
            if call is None or call is not seen:
                seen, seconds = call, 0.0
            else:
                seconds += step
                if seconds > call.deadline:
                    self._end(outlasted(call.name, call.deadline))
                    return
            step = LONGEST / 4 if call is None else min(call.deadline / STEPS, LONGEST)
