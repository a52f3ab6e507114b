"""Recording the order of a rank's events in the run folder, `run.record_order`."""

import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import numpy as np
import xxhash

from mpitrain import __version__
from mpitrain.errors import BadInput, say
from mpitrain.files import checksum as checksum_of
from mpitrain.flat import Array
from mpitrain.mpi.agreement import agreed
from mpitrain.mpi.launcher import BufSpec, library
from mpitrain.mpi.order import TAGS, EventKind, LogHeader, LogWriter, file_of
from mpitrain.mpi.transport import Transport
from mpitrain.mpi.witness import Witness

T = TypeVar("T")
FINE = 1e6  # the clock is read in whole microseconds


def made_by() -> str:
    """What bits and events depend on beside the input: the program, with a checksum of its source; libraries; the
    machine."""
    sources = checksum_of(b"".join(path.read_bytes() for path in sorted(Path(__file__).parents[1].rglob("*.py"))))
    return f"mpitrain {__version__} ({sources[:8]}), NumPy {np.__version__}, {library()}, {platform.machine()}"


def recorder(transport: Transport, folder: Path | None, threads: int, config: str) -> "EventRecorder":
    """A recorder for the run folder, which the first rank knows. Collective; raises BadInput naming a file."""
    what = "the record of the order of events"
    mine = "" if folder is None else f"{uuid4().hex}\n{made_by()}\n{folder.absolute()}"
    run, by, where = os.fsdecode(transport.broadcast(os.fsencode(mine), what)).split("\n", 2)

    def opened() -> LogWriter:
        path = file_of(Path(where), transport.rank)
        nodes, probes = transport.node_leaders, transport.runtime.probes
        return LogWriter(path, LogHeader(run, transport.rank, transport.size, nodes, threads, probes, by, config))

    return EventRecorder(agreed(transport, opened, what))


def checksum(received: BufSpec) -> int:
    """The checksum of what was received, in 32 bits."""
    memory: Array = received[0] if isinstance(received, (list, tuple)) else received
    return int(xxhash.xxh3_64_intdigest(memory)) & 0xFFFFFFFF


class EventRecorder(Witness):
    """Writes events to a file. The clock is read in whole microseconds, so that readings are integers.

    If the file can no longer be written, the training goes on without it.
    """

    def __init__(self, writer: LogWriter) -> None:
        self._writer: LogWriter | None = writer
        self._read, self._looks = 0, 0

    def message(self, find: Callable[[int], T | None], source: int, tag: int, sender: Callable[[], int]) -> T | None:
        found = find(source)
        if found is None:
            self._event(EventKind.NOTHING)
        else:
            self._event(EventKind.MESSAGE, sender() * TAGS + tag)
        return found

    def happened(self, test: Callable[[], bool]) -> bool:
        done = test()
        self._event(EventKind.HAPPENED if done else EventKind.NOTHING)
        return done

    def content(self, received: BufSpec) -> None:
        self._event(EventKind.CONTENT, checksum(received))

    def clock(self, reading: float) -> float:
        before, self._read = self._read, max(int(reading * FINE), self._read)
        self._event(EventKind.CLOCK, self._read - before)
        return self._read / FINE

    def stopped(self, asked: bool) -> bool:
        self._looks += 1
        if asked:
            self._event(EventKind.STOP, self._looks)
        return asked

    def end(self, status: int, parameters: Callable[[], str]) -> None:
        self._write(lambda writer: writer.close(status, parameters()))
        self._writer = None

    def _event(self, kind: EventKind, value: int = 0) -> None:
        self._write(lambda writer: writer.event(kind, value))

    def _write(self, write: Callable[[LogWriter], None]) -> None:
        try:
            if self._writer is not None:
                write(self._writer)
        except BadInput as error:
            self._writer = None
            say(f"{error}; the training goes on without the record of its events")
