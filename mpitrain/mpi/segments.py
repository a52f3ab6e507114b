"""The shared memory of MPI libraries: a job that is killed or aborted leaves segments in /dev/shm, and nothing removes
them.

Their names tell no owner, and every program of these libraries uses such names. So the first rank of each node notes
its job's segments in a file of the user's; the next start on that node removes those that are noted, unchanged, and
mapped by no process. MPICH has one segment for all ranks of a node, Open MPI one for each.
"""

import os
import platform
import re
from collections.abc import Iterator
from contextlib import suppress
from glob import escape, glob
from pathlib import Path

from mpitrain.start import local_rank_of

MEMORY = "/dev/shm/"
MPICH = MEMORY + "mpich_"
#: The node, the user and the job, then the rank on the node. Where /dev/shm cannot be used, it lies elsewhere. Before
#: version 5 the name begins with "vader".
OPEN_MPI = re.compile(r"(/.*/(?:sm|vader)_segment\.[^/]+)\.\d+")
FIRST = ".0"  # the end of the name of the first rank's


def mapped(process: str = "self") -> set[str]:
    """The segments that a process maps and that have a name yet."""
    with open(f"/proc/{process}/maps", encoding="utf-8", errors="replace") as lines:
        paths = {line.split(maxsplit=5)[-1].rstrip("\n") for line in lines if "/" in line}
    return {path for path in paths if is_segment(path)}


def is_segment(path: str) -> bool:
    """Whether a path is one that MPI libraries give to their segments."""
    if path.startswith(MPICH):
        return "/" not in path[len(MPICH) :] and not path.endswith(" (deleted)")
    return OPEN_MPI.fullmatch(path) is not None


def note() -> None:
    """Note the segments of this process's job, and remove what earlier jobs have left on this node, where it is the
    node's first rank. A home that cannot be written, or read, is no error."""
    if local_rank_of(os.environ, 0) == 0:
        with suppress(OSError, RuntimeError):
            if lines := list(_lines(_of_job(mapped()))):
                own, new = _own(), _folder().with_name(f"new-{platform.node()}-{os.getpid()}")
                own.parent.mkdir(parents=True, exist_ok=True)
                new.write_text("\n".join(lines), encoding="utf-8")
                new.rename(own)  # whole, or not there
        with suppress(OSError, RuntimeError):
            _remove_left()


def forget() -> None:
    """Remove the note at a clean end, when MPI has removed the segments, or a launcher is about to. Open MPI's launcher
    may not, and a process without a launcher must itself: a first rank's segment that is left is removed here."""
    with suppress(OSError, RuntimeError):
        own = _own()
        for path in _left(own):
            if path.endswith(FIRST):
                os.unlink(path)
        if not _left(own):
            own.unlink()


def remove_own() -> None:
    """Remove the names of the segments that this process maps, before it ends its job; mappings stay valid."""
    with suppress(OSError, RuntimeError):
        for path in mapped():
            os.unlink(path)


def _of_job(own: set[str]) -> set[str]:
    """These segments and, with Open MPI, those of the other ranks of the node."""
    jobs = {match[1] for match in map(OPEN_MPI.fullmatch, own) if match}
    return own | {path for job in jobs for path in glob(f"{escape(job)}.*") if is_segment(path)}


def _lines(paths: set[str]) -> Iterator[str]:
    for path in sorted(paths):
        with suppress(OSError):  # another rank has ended
            yield f"{_identity(path)} {path}"


def _remove_left() -> None:
    place, boot = _place(), _boot()
    records = [path for path in _folder().iterdir() if path != _own()]
    left = {path: _left(path) for path in records if path.name.startswith(place)}
    wanted = set[str]().union(*left.values()) - mapped()
    used = set[str]().union(*_mapped_anywhere()) if wanted else wanted
    for segment in wanted - used:
        with suppress(FileNotFoundError):  # another start was faster
            os.unlink(segment)
    for path in records:
        needed = left[path] - (wanted - used) if path in left else path.name.startswith(boot)
        if not needed:  # its segments are gone, or it is from before the node was started again
            path.unlink(missing_ok=True)


def _left(record: Path) -> set[str]:
    """The noted segments that are still there, the same and this user's."""
    found = set()
    with suppress(OSError, UnicodeDecodeError):
        for line in record.read_text(encoding="utf-8").splitlines():
            identity, _, path = line.partition(" ")
            with suppress(OSError):
                if is_segment(path) and _identity(path) == identity:
                    found.add(path)
    return found


def _mapped_anywhere() -> Iterator[set[str]]:
    for process in os.listdir("/proc"):
        if process.isdigit():
            with suppress(OSError):  # it has ended, or is another user's, who cannot map this one's memory
                yield mapped(process)


def _identity(path: str) -> str:
    """Inode, size, owner: a name may come again."""
    at = os.lstat(path)
    if at.st_uid != os.getuid():
        raise PermissionError(path)
    return f"{at.st_ino}:{at.st_size}:{at.st_uid}"


def _folder() -> Path:
    base = os.environ.get("XDG_RUNTIME_DIR") or Path.home() / ".cache"
    return Path(base) / "mpitrain" / "segments" / platform.node()


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")[:8]


def _place() -> str:
    """This container since the node's start: nobody sees what the processes of another container map."""
    return f"{_boot()}-{os.stat('/proc/self/ns/pid').st_ino}-{os.stat(MEMORY).st_dev}-"


def _own() -> Path:
    return _folder() / f"{_place()}{os.getpid()}"
