"""Files that are whole whenever they are there, also after a crash."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mpitrain.errors import BadInput


def write_durably(path: Path, content: str | bytes) -> None:
    """Write a file under a temporary name, rename it, and have both the content and the name on the disk."""
    temporary = path.with_name(f".writing-{os.getpid()}-{path.name}")
    try:
        with temporary.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync(path.parent)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def write_whole(path: Path, content: str | bytes) -> None:
    """`write_durably`, into a folder that is made. Raises BadInput naming the file when the disk refuses."""
    with refusals(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, content)


def sync(folder: Path) -> None:
    """Have the folder's names on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def refusals(path: Path) -> Iterator[None]:
    """Turn what a full or read-only disk raises into BadInput with the file's name."""
    try:
        yield
    except OSError as error:
        raise BadInput(f"{path}: cannot be written: {error.strerror or error}") from error
