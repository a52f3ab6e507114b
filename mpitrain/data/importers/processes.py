"""The worker processes of an import.

They ignore signals that are sent to all processes of a terminal or job: the parent handles these, and lets them finish
their current work. They exit when the parent ends them or has disappeared.
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

STOP_SIGNALS = {signal.SIGINT, signal.SIGTERM}
LOOK = 1.0  # seconds between two checks whether the parent process still exists
EARLY = 8  # most processes to start before the amount of work is known


def processes(jobs: int, module: str) -> Executor:
    """An executor of at most `jobs` processes, which load `module` while their work is being planned.

    For a single job it uses a thread, so that the rank can answer the others.
    """
    if jobs <= 1:
        return ThreadPoolExecutor(1)
    executor = ProcessPoolExecutor(jobs, _Context(), _begin, (os.getpid(),))
    for _ in range(min(jobs, EARLY)):  # each task starts a process, up to the limit, if none is idle
        executor.submit(_load, module)
    return executor


@contextmanager
def unbroken() -> Iterator[None]:
    """Context that raises BadInput if it finds that one of the processes has died."""
    try:
        yield
    except BrokenProcessPool:
        why = "a process of the import was killed, perhaps for lack of memory; --jobs takes fewer at a time"
        raise BadInput(why) from None


def _load(module: str) -> None:
    import_module(module)


class _Process(SpawnProcess):
    """A process that blocks STOP_SIGNALS while it starts: they would kill it, which breaks the executor."""

    def start(self) -> None:
        """Start the process with the signals blocked."""
        resource_tracker.ensure_running()  # it would unblock them if it started later
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Context(SpawnContext):
    Process = _Process


def _begin(parent: int) -> None:
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before NumPy is loaded: each process uses one core
    Thread(target=_follow, args=(parent,), daemon=True).start()


def _follow(parent: int) -> None:
    """Exit when the parent asks for it, as after the loss of another process, or no longer exists."""
    while os.getppid() == parent:
        stop = signal.sigtimedwait(STOP_SIGNALS, LOOK)
        if stop is not None and stop.si_pid == parent:
            break
    os._exit(1)
