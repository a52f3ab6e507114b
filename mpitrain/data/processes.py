"""The processes that an import computes in.

Signals that reach all of a terminal or job are for the process that started them: it lets them finish what they are at.
They end when that process ends them, or is gone.
"""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from importlib import import_module
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnContext, SpawnProcess
from threading import Thread

from mpitrain.errors import BadInput

WISHES = {signal.SIGINT, signal.SIGTERM}
LOOK = 1.0  # seconds between two looks whether the process that started this one is still there
EARLY = 8  # processes that start before anybody knows how many there is work for


def processes(jobs: int, module: str) -> Executor:
    """At most so many of them, which load `module` while their work is planned.

    A thread instead of one, so that its rank can answer the others.
    """
    if jobs <= 1:
        return ThreadPoolExecutor(1)
    executor = ProcessPoolExecutor(jobs, _Context(), _begin, (os.getpid(),))
    for _ in range(min(jobs, EARLY)):  # each task starts a process, as long as there are not so many and none is idle
        executor.submit(_load, module)
    return executor


@contextmanager
def unbroken() -> Iterator[None]:
    """Raises BadInput where one of the processes is found to have died."""
    try:
        yield
    except BrokenProcessPool:
        why = "a process of the import was killed, perhaps for lack of memory; --jobs takes fewer at a time"
        raise BadInput(why) from None


def _load(module: str) -> None:
    import_module(module)


class _Process(SpawnProcess):
    """Born with WISHES blocked: one that comes while it starts would kill it, and an executor does without none."""

    def start(self) -> None:
        """Start it."""
        resource_tracker.ensure_running()  # it unblocks them when it starts
        before = signal.pthread_sigmask(signal.SIG_BLOCK, WISHES)
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Context(SpawnContext):
    Process = _Process


def _begin(parent: int) -> None:
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before NumPy is loaded: a process has one core
    Thread(target=_follow, args=(parent,), daemon=True).start()


def _follow(parent: int) -> None:
    """Leave when the parent says so, as an executor does that has lost one of its processes, or is no more."""
    while os.getppid() == parent:
        wish = signal.sigtimedwait(WISHES, LOOK)
        if wish is not None and wish.si_pid == parent:
            break
    os._exit(1)
