"""The processes that an import computes in."""

import multiprocessing
import os
import signal
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from threading import Thread


def processes(jobs: int) -> Executor:
    """So many of them, or a thread instead of one, so that its rank can answer the others."""
    if jobs <= 1:
        return ThreadPoolExecutor(1)
    return ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _begin)


def _begin() -> None:
    """Leave signals, which reach all of a terminal or job, to the process that started this one, and end with it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    Thread(target=_follow, daemon=True).start()


def _follow() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()  # killed: an executor's processes would wait for it for ever
    os._exit(1)
