"""Write files that are complete whenever they exist, even after a crash; read files that anybody may have written."""

import ctypes
import errno
import json
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from itertools import count
from math import inf
from pathlib import Path, PurePath
from typing import NamedTuple

import xxhash

from mpitrain.errors import BadInput, naming

#: A JSON or TOML object to write.
Record = dict[str, object]
LARGEST = 1 << 30  # most bytes of a file that is read whole
HERE, EXCHANGE = -100, 2  # of Linux's renameat2: paths from the working directory on; names change places
CHECKSUM = "xxh3"  # the key under which a JSON object holds its own checksum


class Version(NamedTuple):
    """What changes when a file is written or replaced, unless its time is set back: size in bytes, time in ns."""

    device: int
    inode: int
    size: int
    modified: int


def version_of(status: os.stat_result) -> Version:
    """The version that a file's status shows."""
    return Version(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


@contextmanager
def replacing(*paths: Path) -> Iterator[list[Path]]:
    """Context that gives temporary paths. Unless it raises, they are then renamed to `paths`, of one folder, in order,
    with contents and names synced to the disk. Raises OSError if one of `paths` is a device, a pipe or a folder."""
    for path in paths:
        if path.exists() and not path.is_file():
            raise OSError(f"{path.name} is not a regular file")
    temporary = [path.with_name(f".writing-{os.getpid()}-{path.name}") for path in paths]
    try:
        yield temporary
        for written in temporary:
            with written.open("rb") as file:
                os.fsync(file.fileno())
        for path in paths[1:]:  # no old file may remain beside a new one
            path.unlink(missing_ok=True)
        for written, path in zip(temporary, paths, strict=True):
            written.replace(path)
        sync(paths[0].parent)
    finally:
        for written in temporary:
            with suppress(OSError):
                written.unlink()


def exchanged(one: Path, other: Path) -> bool:
    """Let two files or folders have each other's names, at one moment; returns whether that was done. Only Linux can,
    and not on every file system, such as NFS."""
    try:
        rename = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    return rename(HERE, os.fsencode(one), HERE, os.fsencode(other), ctypes.c_uint(EXCHANGE)) == 0


def write_durably(path: Path, content: str | bytes) -> None:
    """Write a file under a temporary name, rename it, and sync both content and name to the disk."""
    with replacing(path) as [temporary]:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def write_whole(path: Path, content: str | bytes) -> None:
    """Like `write_durably`, and create the folder. Raises BadInput naming the file if it cannot be written."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, content)


def write_below(folder: Path, name: str, content: str | bytes) -> None:
    """Like `write_whole`, but `folder` must exist: a folder that was moved or deleted is not created again."""
    with writing(folder / name):
        make_folders(folder, name)
        write_durably(folder / name, content)


def make_numbered(folder: Path, mode: int = 0o777, parents: bool = False) -> Path:
    """Make and return a new folder, with a number appended to its name if that exists; with `parents`, missing parents
    too. Raises BadInput naming it."""
    new = folder
    for number in count(2):
        with writing(new):
            try:
                new.mkdir(mode, parents)
                break
            except FileExistsError:
                if not os.path.lexists(new):  # what exists is no folder, in the place of a parent
                    raise
        new = folder.with_name(f"{folder.name}-{number}")
    return new


def make_folders(folder: Path, name: str) -> None:
    """Create the folders between `folder`, which must exist, and its file `name`, such as "order/0.bin"."""
    for between in reversed(PurePath(name).parents[:-1]):
        (folder / between).mkdir(exist_ok=True)


def regular_status(path: Path) -> os.stat_result:
    """The status of a regular file, to which `path` may be a link. Raises OSError for anything else: a pipe would be
    waited for, a device may never end."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError("not a regular file")
    return found


def read_whole(path: Path, most: int = LARGEST) -> bytes:
    """The content of a regular file of at most `most` bytes. Raises OSError."""
    size = regular_status(path).st_size
    if size > most:
        raise OSError(f"larger than {most >> 20:,} MiB")
    with path.open("rb") as file:
        return file.read(size)


def read_text(path: Path, most: int = LARGEST, errors: str = "strict") -> str:
    """Like `read_whole`, as UTF-8 text whose lines end in \\n. Raises OSError, or ValueError if it is not UTF-8."""
    return read_whole(path, most).decode("utf-8", errors).replace("\r\n", "\n").replace("\r", "\n")


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Keep other processes that claim the folder, to prepare shards in it, away until the block, or this process, ends.

    Raises BadInput naming a folder that another process has claimed. File systems that cannot lock folders, such as
    NFS, keep none away.
    """
    with writing(folder):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):
            try:
                flock(handle, LOCK_EX | LOCK_NB)
            except BlockingIOError:
                raise BadInput(f"{folder}: another process is preparing shards in it") from None
        yield
    finally:
        os.close(handle)


def sync(folder: Path) -> None:
    """Sync the names in a folder to the disk, on file systems that can: others give EINVAL."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(handle)


def room(folder: Path) -> float:
    """How many bytes a folder's disk has left; infinity on file systems that do not say, such as some network shares.
    Raises OSError."""
    left = shutil.disk_usage(folder)
    return left.free if any(left) else inf


def writing(path: Path) -> AbstractContextManager[None]:
    """Turn the errors of a full or read-only disk into BadInput naming the file."""
    return naming(f"{path}: cannot be written")


def checksum(content: str | bytes | memoryview) -> str:
    """xxh3 of a content, in hexadecimal, by which damage is detected."""
    return xxhash.xxh3_64_hexdigest(content.encode() if isinstance(content, str) else content)


def sealed_json(fields: Record) -> str:
    """A JSON object with its checksum, as the content of a file."""
    return json.dumps({**fields, CHECKSUM: checksum(json.dumps(fields))}) + "\n"


def unsealed_json(content: str | bytes) -> Record:
    """The object that `sealed_json` has written. Raises ValueError for anything else."""
    fields = None
    with suppress(ValueError, RecursionError):
        fields = json.loads(content)
    if not isinstance(fields, dict) or fields.pop(CHECKSUM, None) != checksum(json.dumps(fields)):
        raise ValueError("does not match its checksum")
    return fields


def shipped(name: str) -> Path:
    """A folder that comes with the program: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).parents[1]
    return next(path for path in (package / name, package.parent / name) if path.is_dir())
