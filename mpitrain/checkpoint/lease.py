"""A run folder belongs to one run: while the run is alive, `in-use.json` in the folder names its process.

The file is created exclusively, and its modification time is renewed every few seconds as a heartbeat. A run that finds
the file of another checks whether that one is still alive: on the same machine by its process, elsewhere by its
heartbeat, measured with the file system's clock alone. A requeued job does not wait for the file of its previous start.
"""

import os
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import msgspec

from mpitrain.errors import BadInput

NAME = "in-use.json"
HEARTBEAT, SILENT = 5.0, 60.0  # seconds between heartbeats; seconds without one after which a remote run counts as dead
LOOK_EVERY = 0.2  # seconds between two checks for a heartbeat


class Holder(msgspec.Struct, frozen=True):
    """A process and its machine. The machine is identified by its boot and by its namespace of process numbers."""

    host: str = ""
    process: int = 0
    started: str = ""  # start time in clock ticks after boot, to recognise a reused process number
    machine: str = ""
    job: str = ""
    restarts: str = ""  # how often the batch system has restarted the job
    token: str = ""

    @classmethod
    def here(cls) -> "Holder":
        """This process."""
        job, restarts = os.environ.get("SLURM_JOB_ID", ""), os.environ.get("SLURM_RESTART_COUNT", "0")
        started = _started(os.getpid()) or ""
        return cls(socket.gethostname(), os.getpid(), started, _machine(), job, restarts, uuid4().hex)

    @property
    def lives(self) -> bool | None:
        """Whether the process still exists; None if this machine cannot tell."""
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
    """This process's exclusive use of a run folder, from construction to `release`.

    Raises BadInput naming the folder and, if another process uses it, that process.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._path = folder, folder / NAME
        self._mine, self._over = Holder.here(), threading.Event()
        try:
            while not self._create():
                self._displace()
        except OSError as error:
            raise BadInput(f"{self._path}: {error.strerror}") from error
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    def release(self) -> None:
        """Release the folder. It is removed if it is empty, as after bad input."""
        self._over.set()
        with suppress(OSError, msgspec.DecodeError):
            if _read(self._path)[0].token == self._mine.token:
                self._path.unlink()
        with suppress(OSError):
            self.folder.rmdir()

    def _create(self) -> bool:
        """Create the file; whether that succeeded, that is, it did not exist."""
        try:
            handle = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            return False
        with open(handle, "wb") as file:
            file.write(msgspec.json.encode(self._mine) + b"\n")
        return True

    def _displace(self) -> None:
        """Remove the file of a run that has ended. Raises BadInput if the run is alive."""
        try:
            holder, renewed = _known(self._path)
            if holder.lives or (holder.lives is None and self._gives_heartbeat(holder, renewed)):
                raise BadInput(f"{self.folder}: {_known(self._path)[0]}")
            aside = self._path.with_name(f".{NAME}.{self._mine.token}")
            self._path.rename(aside)  # if several processes try, only one succeeds
            if _known(aside)[0].token != holder.token:  # another process was faster, and this is the new holder's file
                with suppress(FileExistsError):
                    os.link(aside, self._path)
            aside.unlink()
        except FileNotFoundError:  # it has disappeared in the meantime
            return

    def _gives_heartbeat(self, holder: Holder, renewed: float) -> bool:
        """Whether the file is renewed within SILENT seconds."""
        silent = min(max(self._now() - renewed, 0.0), SILENT)
        end = time.monotonic() + SILENT - silent
        while time.monotonic() < end:
            if _known(self._path) != (holder, renewed):
                return True
            time.sleep(LOOK_EVERY)
        return False

    def _now(self) -> float:
        """The current time of the file system's clock."""
        probe = self._path.with_name(f".{NAME}.{self._mine.token}")
        probe.touch()
        try:
            return probe.stat().st_mtime
        finally:
            probe.unlink()

    def _beat(self) -> None:
        """Renew the file until `release`. A run that was taken for dead, as after a long suspension, ends itself."""
        while not self._over.wait(HEARTBEAT):
            with suppress(OSError, msgspec.DecodeError):
                holder, _ = _read(self._path)
                if holder.token == self._mine.token:
                    os.utime(self._path)
                elif not self._over.is_set():
                    print(f"mpitrain: {self.folder}: lost to another run: {holder}", file=sys.stderr, flush=True)
                    os._exit(1)


def user(folder: Path) -> Holder | None:
    """The process that uses a run folder, as far as that is known without waiting."""
    try:
        holder, _ = _known(folder / NAME)
    except OSError:
        return None
    return None if holder.lives is False else holder


def _read(path: Path) -> tuple[Holder, float]:
    """The content and modification time of the file. It is reopened each time, since NFS shows changes only on opening.
    Raises OSError, or DecodeError for a file that is being written."""
    with path.open("rb") as file:
        renewed = os.fstat(file.fileno()).st_mtime
        return msgspec.json.decode(file.read(), type=Holder), renewed


def _known(path: Path) -> tuple[Holder, float]:
    """Like `_read`, with an unnamed holder for an incomplete file."""
    try:
        return _read(path)
    except msgspec.DecodeError:
        return Holder(), path.stat().st_mtime


def _machine() -> str:
    """This boot of this machine and its namespace of process numbers, which differs between containers."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + " " + os.readlink("/proc/self/ns/pid")


def _started(process: int) -> str | None:
    """When a process started; None if it does not exist or is a zombie."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def _hidden(process: int) -> bool:
    """Whether a process of another user has this number, which /proc may hide."""
    try:
        os.kill(process, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return False
