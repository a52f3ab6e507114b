"""The signals that ask a program to end, and the exit statuses of trainings."""

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
STOPPED = 75  # exit status of a run that a signal ended: sysexits' EX_TEMPFAIL, "try again later"
#: The exit status of a training by its `exit_reason`.
STATUS = {"finished": 0, "diverged": 1, "incomplete": 1, "stopped": STOPPED, "moved": 1, "deleted": 1}
ECHO = 10.0  # seconds within which further signals are the first one's echoes; Slurm leaves 30 before it kills
ECHO_OF_INTERRUPT = 2.0  # the same for SIGINT, which people send
AGAIN = 0.05  # seconds until a SIGINT that was dropped comes again


class Interrupted(BaseException):
    """A stop was requested. A handler may raise it anywhere, so that no `except Exception` is to take it."""


@contextmanager
def handling(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Context in which a function handles the signals, if this is Python's main thread; other threads cannot. Its end
    restores the former handlers, but one of a library in C, which Python cannot put back: the default takes its place.
    """
    numbers = NUMBERS if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former or signal.SIG_DFL)


@contextmanager
def interruptible() -> Iterator[None]:
    """Context in which SIGINT raises KeyboardInterrupt also if it comes where Python drops exceptions, as in callbacks
    of weak references, of which h5py has many: it comes again then."""
    before = sys.unraisablehook

    def hook(dropped: "sys.UnraisableHookArgs") -> None:
        if issubclass(dropped.exc_type, KeyboardInterrupt):
            threading.Timer(AGAIN, os.kill, (os.getpid(), signal.SIGINT)).start()
        else:
            before(dropped)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


@dataclass
class Stop:
    """Whether a signal has requested a stop. The handler only notes it; a second signal ends the process at once.

    Batch systems signal the ranks and their launcher, which forwards the signal, on a busy node late. One request thus
    arrives two or three times: signals within ECHO seconds of the first one do not count as a second one.
    """

    flag: bool = False
    signal: int = 0
    since: float = 0.0
    clock: Callable[[], float] = time.monotonic

    def ask(self) -> None:
        """Request a stop from within the program, as a signal does from outside."""
        self.flag = True

    def install(self) -> None:
        """Handle the signals that users, launchers and batch systems send to end a job or to warn of its end.

        Python lets only its main thread do so: called in another thread, this changes no handler.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        for number in NUMBERS:
            signal.signal(number, self._handle)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, NUMBERS)  # jobs/launch.sh blocks SIGTERM in mpirun

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Context in which signals are handled as after `install`; its end restores the former handlers."""
        with handling(self._handle):
            self.install()
            yield

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self.signal:  # not `flag`: another rank's stop request may have come before this rank's own signal
            self.flag, self.signal, self.since = True, number, self.clock()
        elif self.clock() - self.since > (ECHO_OF_INTERRUPT if number == signal.SIGINT else ECHO):
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)


@atexit.register
def _rest() -> None:
    """Ignore the signals while Python ends, which takes seconds, and in which it would restore the defaults."""
    for number in NUMBERS:
        if isinstance(getattr(signal.getsignal(number), "__self__", None), Stop):
            signal.signal(number, signal.SIG_IGN)
