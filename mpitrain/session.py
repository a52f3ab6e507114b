"""Everything a protocol needs to train, handed to it whole."""

import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from mpitrain.config import Config
from mpitrain.learner import Learner
from mpitrain.monitor import Monitor
from mpitrain.schedule import Schedule
from mpitrain.state import State

if TYPE_CHECKING:
    from mpitrain.mpi import Transport
    from mpitrain.saving import Saver


@dataclass
class Stop:
    """Whether a signal has asked for the end. Nothing else happens in the handler; a second signal ends at once."""

    flag: bool = False
    signal: int = 0

    def install(self) -> None:
        """Listen to SIGINT and SIGTERM."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal:  # not `flag`: another rank's wish to stop may have come before this rank's own signal
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.flag, self.signal = True, number


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
    resumed: Path | None = None  # the checkpoint that this run goes on from

    def say_exchange(self, how: str) -> None:
        """Record how vectors travel."""
        self.monitor.exchange = how
