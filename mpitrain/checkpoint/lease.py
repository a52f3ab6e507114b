"""A run folder belongs to one run: while that lives, `in-use.json` in the folder says which process it is.

The file is created exclusively, and its time is renewed every few seconds. A run that finds another's asks whether that
one still lives: on the same machine its process tells; elsewhere its heartbeat does, measured by the clock of the file
system alone. A job that its batch system has started again does not wait for what its start before has left.
"""

import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import msgspec

from mpitrain.errors import BadInput

NAME = "in-use.json"
HEARTBEAT, SILENT = 5.0, 60.0  # seconds between heartbeats; without one for so long, a run elsewhere has ended
LOOK_EVERY = 0.2  # seconds between two looks for a heartbeat


class Holder(msgspec.Struct, frozen=True):
    """A process, on a machine that nothing but the same boot and the same process numbers can be confused with."""

    host: str = ""
    process: int = 0
    started: str = ""  # in clock ticks after the boot, so that a number given anew is not taken for the old process
    machine: str = ""
    job: str = ""
    restarts: str = ""  # of the job by its batch system
    token: str = ""

    @classmethod
    def here(cls) -> "Holder":
        """This process."""
        job, restarts = os.environ.get("SLURM_JOB_ID", ""), os.environ.get("SLURM_RESTART_COUNT", "0")
        started = _started(os.getpid()) or ""
        return cls(socket.gethostname(), os.getpid(), started, _machine(), job, restarts, uuid4().hex)

    @property
    def lives(self) -> bool | None:
        """Whether the process is still there; None where that cannot be told from here."""
        here = Holder.here()
        if self.job and self.job == here.job and self.restarts != here.restarts:
            return False
        if not self.machine or self.machine != here.machine:
            return None
        started = _started(self.process)
        return None if started is None and _hidden(self.process) else started == self.started

    def __str__(self) -> str:
        job = f" (job {self.job})" if self.job else ""
        return f"in use by process {self.process} on {self.host}{job}" if self.host else f"in use by a run ({NAME})"


class Lease:
    """This process's hold on a run folder, from construction to `release`. `wait` is called while it waits.

    Raises BadInput naming the folder, and the process that has it where one has.
    """

    def __init__(self, folder: Path, wait: Callable[[], None] = lambda: None) -> None:
        self.folder, self._path, self._wait = folder, folder / NAME, wait
        self._mine, self._over = Holder.here(), threading.Event()
        try:
            while not self._create():
                self._displace()
        except OSError as error:
            raise BadInput(f"{self._path}: {error.strerror}") from error
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    def release(self) -> None:
        """Leave the folder to others; an empty one, as bad input leaves it, is removed."""
        self._over.set()
        with suppress(OSError, msgspec.DecodeError):
            if _read(self._path)[0].token == self._mine.token:
                self._path.unlink()
        with suppress(OSError):
            self.folder.rmdir()

    def _create(self) -> bool:
        """Whether there was no such file."""
        try:
            handle = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            return False
        with open(handle, "wb") as file:
            file.write(msgspec.json.encode(self._mine) + b"\n")
        return True

    def _displace(self) -> None:
        """Remove the file of a run that has ended. Raises BadInput where it lives."""
        try:
            holder, renewed = _known(self._path)
            if holder.lives or (holder.lives is None and self._gives_heartbeat(holder, renewed)):
                raise BadInput(f"{self.folder}: {_known(self._path)[0]}")
            aside = self._path.with_name(f".{NAME}.{self._mine.token}")
            self._path.rename(aside)  # of several that try, one gets it
            if _known(aside)[0].token != holder.token:  # somebody was quicker, and this is the new holder's
                with suppress(FileExistsError):
                    os.link(aside, self._path)
            aside.unlink()
        except FileNotFoundError:  # it has gone meanwhile
            return

    def _gives_heartbeat(self, holder: Holder, renewed: float) -> bool:
        """Watch until the file is renewed, or has not been for SILENT seconds."""
        silent = min(max(self._now() - renewed, 0.0), SILENT)
        end = time.monotonic() + SILENT - silent
        while time.monotonic() < end:
            if _known(self._path) != (holder, renewed):
                return True
            self._wait()
            time.sleep(LOOK_EVERY)
        return False

    def _now(self) -> float:
        """The time by the clock of the file system."""
        probe = self._path.with_name(f".{NAME}.{self._mine.token}")
        probe.touch()
        try:
            return probe.stat().st_mtime
        finally:
            probe.unlink()

    def _beat(self) -> None:
        """Renew the file until the end. A run that was taken for dead, as after hours of suspension, ends itself."""
        while not self._over.wait(HEARTBEAT):
            with suppress(OSError, msgspec.DecodeError):
                holder, _ = _read(self._path)
                if holder.token == self._mine.token:
                    os.utime(self._path)
                elif not self._over.is_set():
                    print(f"mpitrain: {self.folder}: lost to another run: {holder}", file=sys.stderr, flush=True)
                    os._exit(1)


def user(folder: Path) -> Holder | None:
    """Who uses a run folder, as far as can be told without waiting."""
    try:
        holder, _ = _known(folder / NAME)
    except OSError:
        return None
    return None if holder.lives is False else holder


def _read(path: Path) -> tuple[Holder, float]:
    """The file and when it was renewed; opened anew each time, as NFS shows others' changes. Raises OSError, or
    DecodeError for a file that is being written."""
    with path.open("rb") as file:
        renewed = os.fstat(file.fileno()).st_mtime
        return msgspec.json.decode(file.read(), type=Holder), renewed


def _known(path: Path) -> tuple[Holder, float]:
    """As `_read`, with a nameless holder for a file that is not whole."""
    try:
        return _read(path)
    except msgspec.DecodeError:
        return Holder(), path.stat().st_mtime


def _machine() -> str:
    """This boot of this machine, and which processes are seen here: containers number theirs apart."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + " " + os.readlink("/proc/self/ns/pid")


def _started(process: int) -> str | None:
    """When a process started; None where there is none, or only what its parent has not taken note of."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def _hidden(process: int) -> bool:
    """Whether another user's process has this number: /proc may not show it."""
    try:
        os.kill(process, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return False
