"""A run folder belongs to one run: while the run is alive, `in-use.json` in the folder names its process.

The file is created exclusively, and its modification time is renewed every few seconds as a heartbeat. A run that finds
the file of another checks whether that one is still alive: on the same machine by its process, elsewhere by its
heartbeat, measured with the file system's clock alone. A requeued job does not wait for the file of its previous start.
"""

import errno
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import msgspec

from mpitrain.errors import BadInput, naming, say

NAME = "in-use.json"
HEARTBEAT, SILENT = 5.0, 60.0  # seconds between heartbeats; seconds without one after which a remote run counts as dead
POLL_INTERVAL = 0.2  # seconds between two checks for a heartbeat
LONGEST = 1 << 16  # bytes of the file


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
        # this boot of this machine and its namespace of process numbers, which differs between containers
        machine = Path("/proc/sys/kernel/random/boot_id").read_text().strip() + " " + os.readlink("/proc/self/ns/pid")
        return cls(socket.gethostname(), os.getpid(), started, machine, job, restarts, uuid4().hex)

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

    The folder stays open, so that it is found when it is moved meanwhile; `folder` is where it was last. Raises
    BadInput naming the folder and, if another process uses it, that process.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mine, self._over = Holder.here(), threading.Event()
        with naming(folder):
            self._open = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with naming(folder / NAME):
                while not self._create():
                    self._displace()
        except BaseException:
            os.close(self._open)
            raise
        self._beats = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._beats.start()

    def find(self) -> Path | None:
        """Where the folder is now; None if it was deleted."""
        now = Path(os.readlink(f"/proc/self/fd/{self._open}"))
        for path in (self.folder, now):
            if self._is_at(path):
                self.folder = path
                return path
        return None

    def release(self) -> None:
        """Release the folder. It is removed if it is empty, as after bad input."""
        self._over.set()
        self._beats.join(HEARTBEAT)
        with suppress(OSError):
            if _read(NAME, self._open)[0].token == self._mine.token:
                os.unlink(NAME, dir_fd=self._open)
        found = self.find()
        os.close(self._open)
        with suppress(OSError):
            if found is not None:
                found.rmdir()

    def _is_at(self, path: Path) -> bool:
        """Whether a path is this folder, by its inode or, on file systems that change inodes, by our file in it. True
        if the file system does not answer: that does not mean that the folder is gone."""
        try:
            same = os.path.samestat(path.stat(), os.fstat(self._open))
            return same or _read(path / NAME)[0].token == self._mine.token
        except OSError as error:
            return error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)

    def _create(self) -> bool:
        """Create the file; returns whether that succeeded, that is, it did not exist."""
        try:
            handle = os.open(NAME, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644, dir_fd=self._open)
        except FileExistsError:
            return False
        with open(handle, "wb") as file:
            file.write(msgspec.json.encode(self._mine) + b"\n")
        return True

    def _displace(self) -> None:
        """Remove the file of a run that has ended. Raises BadInput if the run is alive."""
        try:
            holder, renewed = _read(NAME, self._open)
            if holder.lives or (holder.lives is None and self._gives_heartbeat(holder, renewed)):
                raise BadInput(f"{self.folder}: {_read(NAME, self._open)[0]}")
            aside = f".{NAME}.{self._mine.token}"
            # if several processes try, only one succeeds
            os.rename(NAME, aside, src_dir_fd=self._open, dst_dir_fd=self._open)
            # another process was faster, and this is the new holder's file
            if _read(aside, self._open)[0].token != holder.token:
                with suppress(FileExistsError):
                    os.link(aside, NAME, src_dir_fd=self._open, dst_dir_fd=self._open)
            os.unlink(aside, dir_fd=self._open)
        except FileNotFoundError:  # it has disappeared in the meantime
            return

    def _gives_heartbeat(self, holder: Holder, renewed: float) -> bool:
        """Whether the file is renewed within SILENT seconds."""
        silent = min(max(_now(self._open) - renewed, 0.0), SILENT)
        end = time.monotonic() + SILENT - silent
        while time.monotonic() < end:
            if _read(NAME, self._open) != (holder, renewed):
                return True
            time.sleep(POLL_INTERVAL)
        return False

    def _beat(self) -> None:
        """Renew the file until `release`. A run that was taken for dead, as after a long suspension, ends itself."""
        while not self._over.wait(HEARTBEAT):
            with suppress(OSError):
                holder, _ = _read(NAME, self._open)
                if holder.token == self._mine.token:
                    os.utime(NAME, dir_fd=self._open)
                elif holder.token and not self._over.is_set():
                    say(f"{self.folder}: lost to another run: {holder}")
                    os._exit(1)


@contextmanager
def occupying(folder: Path) -> Iterator[None]:
    """Make a folder, if it is missing, and keep other processes from using it within the context. Raises BadInput
    naming it, or one of the run folders in its `runs`, and the other process that uses it: a run goes on where the
    program that started it was killed."""
    with naming(folder):
        folder.mkdir(parents=True, exist_ok=True)
    lease = Lease(folder)
    try:
        for run in sorted(folder.glob("runs/*/")):
            if in_use(run) and (holder := user(run)):  # it may have ended in between
                raise BadInput(f"{run}: {holder}")
        yield
    finally:
        lease.release()


def user(folder: Path) -> Holder | None:
    """The process that uses a run folder, as far as that is known without waiting."""
    try:
        holder, _ = _read(folder / NAME)
    except OSError:
        return None
    return None if holder.lives is False else holder


def token_of(folder: Path) -> str:
    """The token of the run that uses a folder, or was killed there last; "" if there is none."""
    with suppress(OSError):
        return _read(folder / NAME)[0].token
    return ""


def in_use(folder: Path) -> bool:
    """Whether a living run uses the folder. A run on another machine counts as living if it has given a heartbeat."""
    holder = user(folder)
    with suppress(OSError):
        return holder is not None and bool(holder.lives or _silence(folder) < SILENT)
    return False


def _silence(folder: Path) -> float:
    """Seconds since the last heartbeat; by this machine's clock where the folder cannot be written."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        now = time.time()
        with suppress(OSError):
            now = _now(handle)
        return now - _read(NAME, handle)[1]
    finally:
        os.close(handle)


def _now(folder: int) -> float:
    """The current time of the clock of an open folder's file system."""
    probe = f".{NAME}.{uuid4().hex}"
    handle = os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644, dir_fd=folder)
    try:
        return os.fstat(handle).st_mtime
    finally:
        os.close(handle)
        os.unlink(probe, dir_fd=folder)


def _read(path: Path | str, folder: int | None = None) -> tuple[Holder, float]:
    """The content and modification time of the file, in an open folder; an unnamed holder while it is being written. It
    is opened anew each time, since NFS shows changes only on opening. Raises OSError."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK, dir_fd=folder), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        holder = Holder()
        with suppress(msgspec.DecodeError):
            holder = msgspec.json.decode(file.read(LONGEST), type=Holder)
        return holder, found.st_mtime


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
    except OSError as error:
        return isinstance(error, PermissionError)
    return False
