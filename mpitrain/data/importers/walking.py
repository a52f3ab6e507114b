"""The files and folders below a source."""

from collections import deque
from pathlib import Path

from mpitrain.data.shards import DIGITS
from mpitrain.errors import naming


def files_below(folder: Path, shards: Path | None = None) -> list[Path]:
    """The files in a folder and in all folders below it, in order.

    Links are followed, to each folder once; links that lead nowhere are in the list. Hidden files and folders, files
    named like shards, and the content of `shards`, the folder that is written, are left out.
    """
    seen = {_identity(shards)} if shards is not None and shards.exists() else set[tuple[int, int]]()
    with naming(folder):
        seen.discard(_identity(folder))
    found, left = list[Path](), deque([folder])
    while left:
        here = left.popleft()
        with naming(here):
            if (identity := _identity(here)) in seen:
                continue
            seen.add(identity)
            for path in sorted(here.iterdir()):
                if path.name.startswith("."):
                    continue
                if path.is_dir():  # links come last: a folder in the tree keeps its name
                    (left.append if path.is_symlink() else left.appendleft)(path)
                elif (path.is_file() or not path.exists()) and not path.match(f"*-{DIGITS}-of-{DIGITS}.h5"):
                    found.append(path)
    return sorted(found)


def folders_in(folder: Path, shards: Path) -> list[Path]:
    """The folders in this one, in order, without hidden ones and `shards`, the folder that is written."""
    with naming(folder):
        found = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    return [path for path in found if path.resolve() != shards.resolve()]


def _identity(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino
