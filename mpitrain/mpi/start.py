"""Ending the job: by an exception, an abort, or at the end of the program."""

import atexit
import ctypes
import fcntl
import os
import stat
import sys
import termios
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from mpitrain.errors import Overdue
from mpitrain.mpi import segments
from mpitrain.mpi.launcher import MPI
from mpitrain.mpi.watchdog import Blocking, Watchdog

segments.note()

PRINTING = 1.0  # seconds that a rank's last lines, once its launcher's helper has read them, are given to go further
READING = 30.0  # seconds that the helper is given to read them


def abort_on_exception() -> None:
    """Make an uncaught exception end the whole job with its traceback; without it the other ranks would hang."""

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, Overdue):  # at the start, before there is anything to end together
            sys.stderr.write(f"mpitrain: {error}\n")
        else:
            lines = traceback.format_exception(kind, error, trace)
            sys.stderr.write(f"rank {MPI.COMM_WORLD.rank}:\n{''.join(lines)}")
        abort(1)

    sys.excepthook = hook


def abort(status: int) -> None:
    """End every rank, once what this one has printed is on its way: launchers drop what comes with the abort."""
    _print_out()
    segments.remove_own()
    MPI.COMM_WORLD.Abort(status)


def _print_out() -> None:
    """Wait until what was printed is on its way."""
    sys.stdout.flush()
    sys.stderr.flush()
    end = time.monotonic() + READING
    while (_unread(1) or _unread(2)) and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(PRINTING)


def _end_alone(line: str) -> None:
    """End this process, and so the job, without MPI, which is in a call that does not return."""
    print(f"mpitrain: rank {_rank}: {line}: another rank is silent; run.deadline sets the seconds", file=sys.stderr)
    _print_out()
    segments.remove_own()
    os._exit(1)


_rank = MPI.COMM_WORLD.rank  # the thread that says it may not ask
_watchdog = Watchdog(_end_alone)


def blocking(call: str, deadline: float) -> Blocking:
    """Context around a call of MPI that blocks: the job ends when it takes longer than so many seconds."""
    return _watchdog.blocking(call, deadline)


def finalize_within(seconds: float) -> None:
    """Have the end of this program wait for the others' for so long at most."""
    _watchdog.deadline = seconds


def _finalize() -> None:
    if MPI.Is_initialized() and not MPI.Is_finalized():
        # An error here says that another rank is ending the job, and has said why.
        with blocking("MPI_Finalize", _watchdog.deadline), suppress(MPI.Exception):
            MPI.Finalize()
    segments.forget()


atexit.register(_finalize)


def _unread(descriptor: int) -> int:
    """Bytes that lie in the pipe of this descriptor; 0 where it is something else, or closed."""
    try:
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return 0
        return int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)), sys.byteorder)
    except OSError:
        return 0


def cuda_aware(wanted: str = "auto") -> tuple[bool, str]:
    """Whether the MPI library takes device buffers, and who says so: `wanted` (run.cuda_aware), else the library."""
    if wanted != "auto":
        return wanted == "yes", f"run.cuda_aware = {wanted!r}"
    kinds = MPI.COMM_WORLD.Get_info().Get("mpi_memory_alloc_kinds") or ""
    if "cuda" in kinds:
        return True, f"mpi_memory_alloc_kinds = {kinds}"
    query = _cuda_query()
    if query is None:
        return False, "the library names no CUDA memory"
    return bool(query()), f"MPIX_Query_cuda_support() = {query()}"


def _cuda_query() -> Callable[[], int] | None:
    """MPIX_Query_cuda_support of Open MPI and MPICH, which mpi4py does not have; None where the library has it not."""
    try:
        return ctypes.CDLL(MPI.__file__).MPIX_Query_cuda_support  # looked for in the library that mpi4py is bound to
    except (OSError, AttributeError):
        return None
