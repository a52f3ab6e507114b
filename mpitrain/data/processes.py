"""The processes that an import computes in.

Signals that reach all of a terminal or job are for the process that started them: it lets them finish what they are at.
They end when that process ends them, or is gone.
"""

import os
import signal
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnContext, SpawnProcess
from threading import Thread

WISHES = {signal.SIGINT, signal.SIGTERM}
LOOK = 1.0  # seconds between two looks whether the process that started this one is still there


def processes(jobs: int) -> Executor:
    """So many of them, or a thread instead of one, so that its rank can answer the others."""
    if jobs <= 1:
        return ThreadPoolExecutor(1)
    return ProcessPoolExecutor(jobs, _Context(), _begin, (os.getpid(),))


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
    Thread(target=_follow, args=(parent,), daemon=True).start()


def _follow(parent: int) -> None:
    """Leave when the parent says so, as an executor does that has lost one of its processes, or is no more."""
    while os.getppid() == parent:
        wish = signal.sigtimedwait(WISHES, LOOK)
        if wish is not None and wish.si_pid == parent:
            break
    os._exit(1)
