"""Files that are complete whenever they exist, even after a crash."""

import os
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from mpitrain.errors import naming

#: A JSON or TOML object to write.
Record = dict[str, object]


def write_durably(path: Path, content: str | bytes) -> None:
    """Write a file under a temporary name, rename it, and sync both content and name to the disk."""
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
    """Like `write_durably`, and create the folder. Raises BadInput naming the file if it cannot be written."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, content)


def sync(folder: Path) -> None:
    """Sync the names in a folder to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def writing(path: Path) -> AbstractContextManager[None]:
    """Turn the errors of a full or read-only disk into BadInput naming the file."""
    return naming(f"{path}: cannot be written")
