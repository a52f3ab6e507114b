"""A process that is one rank of a job: its time, its windows, and its end, be it by an exception or an abort.

All that exists once in a process, and would be shared by ranks that share one, is here: the exit hook, the exception
hook, and the watchdog's thread.
"""

import atexit
import fcntl
import os
import stat
import sys
import termios
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, nullcontext, suppress
from math import inf
from types import TracebackType
from typing import TypeVar, cast

from mpitrain.errors import BadInput, Overdue, say
from mpitrain.mpi import segments
from mpitrain.mpi.communicator import Communicator, Pace, Runtime, Window
from mpitrain.mpi.heartbeats import PROBES
from mpitrain.mpi.launcher import MPI, initialise
from mpitrain.mpi.watchdog import Blocking, Watchdog, Working
from mpitrain.start import first_deadline, local_rank_of, rank_of

T = TypeVar("T")
Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]
PRINTING = 1.0  # seconds for a rank's last lines to be passed on, once the launcher's helper has read them
LOADING = 60.0  # seconds that a running rank may take longer than others to load Python and MPI
READING = 30.0  # seconds for the launcher's helper to read a rank's last lines
#: Bytes of shared memory that MPICH 5, with UCX, takes for each rank of a node, and without which, beside these, some
#: starts of 2 to 13 ranks crashed.
SHARED, BESIDE = 5 << 20, 14 << 20


class Process(Runtime):
    """The `Runtime` of a rank that has a process, and MPI, to itself."""

    pace = Pace()
    probes = PROBES
    together: MPI.Comm = MPI.COMM_WORLD  #: the ranks that end together
    clock, sleep = staticmethod(time.monotonic), staticmethod(time.sleep)

    def __init__(self) -> None:
        self._watchdog = Watchdog(self._end_alone)
        self._patience = 0.0  # seconds, of the calls that start and end MPI; 0 before the start

    def start(self) -> None:
        """Start MPI, if this has not been done. The deadline of the start is looked for in the command line, which is
        not parsed yet. Raises BadInput if it cannot start here."""
        if self._patience:
            return
        self._watchdog.rank, patience = rank_of(os.environ, 0), first_deadline(sys.argv)
        self.warn_of_little_memory()
        with Blocking(self._watchdog, "MPI_Init", patience, LOADING):
            initialise()
        self._patience = patience
        self._watchdog.rank = MPI.COMM_WORLD.rank  # the watchdog's thread may not ask
        segments.note()

    @staticmethod
    def pause(nap: float, patience: float, describe: Callable[[], str]) -> None:
        if nap:
            time.sleep(nap)
        else:
            os.sched_yield()

    @staticmethod
    def join(jobs: Sequence[Future[T]], seconds: float, alone: bool) -> bool:
        return not wait(jobs, seconds).not_done

    def blocking(self, call: str, deadline: float) -> Blocking:
        self._watchdog.deadline_key = self.deadline_key
        return Blocking(self._watchdog, call, deadline)

    def without_stopped(self, call: str, deadline: float) -> Blocking:
        """Like `blocking`, for a call that returns once stopped ranks have ended: those of this node are ended."""
        return Blocking(self._watchdog, call, deadline, 2 * deadline, goes_on=True)  # other nodes' ranks end theirs

    def working(self, beat: Callable[[], None], step: float) -> AbstractContextManager[object]:
        if MPI.Query_thread() < MPI.THREAD_SERIALIZED:  # by whoever started MPI before
            return nullcontext()
        return Working(self._watchdog, beat, step, self.grace)

    @staticmethod
    def allocate(size: int, communicator: Communicator, shared: bool) -> Window:
        make = MPI.Win.Allocate_shared if shared else MPI.Win.Allocate
        return make(size, 1, comm=cast(MPI.Intracomm, communicator))

    @staticmethod
    def shared_memory_left() -> float:
        try:
            left = os.statvfs("/dev/shm")
        except OSError:
            return inf
        return left.f_bavail * left.f_frsize

    def warn_of_little_memory(self) -> None:
        """Say, once on a node, what a bus error in MPI_Init would not say, and give the line the time to arrive."""
        ranks = os.environ.get("MPI_LOCALNRANKS", "")
        with suppress(OSError):
            memory = os.statvfs("/dev/shm")
            whole, wanted = memory.f_blocks * memory.f_frsize, int(ranks) * SHARED + BESIDE if ranks.isdecimal() else 0
            if whole >= wanted:
                return
            if local_rank_of(os.environ, 0) == 0:
                line = f"/dev/shm has {whole / 1e6:,.0f} MB, MPI wants {wanted / 1e6:,.0f} MB for {ranks} ranks"
                say(f"warning: {line}, or the ranks may crash in MPI_Init; in a container: --shm-size=8g")
            self.sleep(PRINTING)

    def finalize_within(self, seconds: float) -> None:
        self._patience = seconds

    @staticmethod
    def abort(status: int) -> None:
        """End every rank, once what this one has printed is on its way: launchers drop what comes with the abort."""
        _print_out()
        segments.remove_own()
        MPI.COMM_WORLD.Abort(status)

    def finalize(self) -> None:
        """MPI_Finalize, if nothing has ended MPI yet."""
        if self._patience and MPI.Is_initialized() and not MPI.Is_finalized():
            # An error here says that another rank is ending the job, and has said why.
            with self.blocking("MPI_Finalize", self._patience), suppress(MPI.Exception):
                self.together.Barrier()  # without Python's lock, which the next call holds: the watchdog sees it
                MPI.Finalize()
        segments.forget()

    def end_without_finalizing(self, status: int) -> None:
        """End this process where others may have been lost, with those that are left: MPI_Finalize of Open MPI 5.0.11
        now and then waits for the lost ones forever."""
        _flush()
        with self.without_stopped("MPI_Barrier", self._patience), suppress(MPI.Exception):
            self.together.Barrier()
        segments.remove_own()
        os._exit(status)

    def _end_alone(self, line: str) -> None:
        """End this process, and so the job, without MPI, which is in a call that does not return."""
        sys.stderr.write(f"mpitrain: {line}\n")  # at once: other ranks may say the same
        _print_out()
        segments.remove_own()
        os._exit(1)


def abort_on_exception() -> None:
    """Make an uncaught exception end the whole job with its traceback; without it the other ranks would hang. Starts
    MPI."""
    PROCESS.start()

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        overdue = isinstance(error, Overdue)  # at the start, before there is anything to end together
        told = f"mpitrain: {error}\n" if overdue else traceback_of_rank(error)
        # torch.distributed collects what a hook before its own writes to sys.stderr, and prints it when that returns
        print(told, end="", file=sys.__stderr__, flush=True)
        abort(1)

    sys.excepthook = hook


def traceback_of_rank(error: BaseException) -> str:
    """The traceback, with the rank in front of each line if there are several, whose lines may mix."""
    lines = "".join(traceback.format_exception(error)).splitlines()
    front = f"rank {MPI.COMM_WORLD.rank}: " if MPI.COMM_WORLD.size > 1 else ""
    return "".join(f"{front}{line}\n" for line in lines)


class _Refusing:
    """An exception hook: one line and status 2 for bad input that all ranks know of; `before` for all else."""

    def __init__(self, before: Hook) -> None:
        self._before = before

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not (isinstance(error, BadInput) and error.agreed):
            self._before(kind, error, trace)
            return
        if error.spoken_here:
            say(error)
        raise SystemExit(2)


def end_as_commands_do() -> None:
    """Let a program of the user's that does not catch the BadInput of a function that all its ranks have called end
    with one line on standard error and status 2, and on several ranks any other exception end the job. Starts MPI."""
    PROCESS.start()
    if MPI.COMM_WORLD.size > 1:
        abort_on_exception()
    if not isinstance(sys.excepthook, _Refusing):
        sys.excepthook = _Refusing(sys.excepthook)


def _print_out() -> None:
    """Wait until what was printed is on its way."""
    _flush()
    end = time.monotonic() + READING
    while (_unread(1) or _unread(2)) and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(PRINTING)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # None, without a reader, closed by the user's code
            stream.flush()


def _unread(descriptor: int) -> int:
    """Bytes in the pipe of this descriptor that nobody has read; 0 if it is closed, or no pipe."""
    try:
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return 0
        return int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)), sys.byteorder)
    except OSError:
        return 0


PROCESS = Process()
atexit.register(PROCESS.finalize)
abort = PROCESS.abort
