"""Everything a protocol needs to train, handed to it whole."""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from mpitrain.config import Config
from mpitrain.device.cpu import CPU, Cpu
from mpitrain.learner import Learner
from mpitrain.monitor import Monitor
from mpitrain.schedule import Schedule
from mpitrain.state import State

if TYPE_CHECKING:
    from mpitrain.mpi import Transport
    from mpitrain.saving import Saver


STOPPED = 75  # exit status of a run that a signal ended: sysexits' EX_TEMPFAIL, "try again later"
WAYS = {  # what a probe of several nodes has chosen, and why
    "messages": "by messages: MPI serves one-sided reads across these nodes only while their target calls MPI",
    "one-sided": "by one-sided reads, which MPI serves across these nodes while their target computes",
}
ECHO = 2.0  # seconds within which further signals are the first one's echoes


@dataclass
class Stop:
    """Whether a signal has asked for the end. Nothing else happens in the handler; a second signal ends at once.

    Batch systems signal the ranks and their launcher, which passes it on, so that one wish comes two or three times:
    what follows the first within ECHO seconds is no second one.
    """

    flag: bool = False
    signal: int = 0
    since: float = 0.0
    clock: Callable[[], float] = time.monotonic

    def install(self) -> None:
        """Listen to what users, launchers and batch systems send to end a job or to warn of its end."""
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
        for number in numbers:
            signal.signal(number, self._handle)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)  # jobs/launch.sh blocks SIGTERM in mpirun

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self.signal:  # not `flag`: another rank's wish to stop may have come before this rank's own signal
            self.flag, self.signal, self.since = True, number, self.clock()
        elif self.clock() - self.since > ECHO:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)


@dataclass
class Session:
    """One rank's part of a run. `members` are the ranks that take part, the master first where there is one."""

    config: Config
    transport: "Transport"
    members: list[int]
    network: Any
    learner: Learner
    schedule: Schedule
    state: State
    monitor: Monitor
    clock: Callable[[], float]
    stop: Stop = field(default_factory=Stop)
    saver: "Saver | None" = None  # where checkpoints go; None: none are written
    device: Cpu = CPU
    resumed: Path | None = None  # the checkpoint that this run goes on from

    def say_exchange(self, how: str) -> None:
        """Record how vectors travel; say it where that was probed."""
        self.monitor.exchange = how
        if how in WAYS and self.config.run.exchange == "auto" and self.transport.nodes > 1:
            self.monitor.progress.line(f"vectors travel {WAYS[how]} (run.exchange)")
