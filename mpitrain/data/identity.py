"""The identity of a source: what its files hold, by digests of all their bytes.

Names, sizes and times do not tell: a file is replaced by an older one of the same size, or its time is set back, and a
copy of the same file has another time. Reading everything once costs less than an import, which reads it too.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from stat import S_ISREG
from typing import NamedTuple

import xxhash

from mpitrain.errors import BadInput, naming
from mpitrain.files import Version, version_of

PORTION = 1 << 26  # bytes that a process digests at a time


class Extent(NamedTuple):
    """Bytes of a file."""

    path: Path
    start: int
    length: int


def versions(paths: Iterable[Path]) -> dict[Path, Version]:
    """The version of each file. Raises BadInput naming one that is missing or no regular file."""
    found: dict[Path, Version] = {}
    for path in paths:
        if path not in found:
            with naming(path):
                status = path.stat()
            if not S_ISREG(status.st_mode):
                raise BadInput(f"{path}: not a regular file")
            found[path] = version_of(status)
    return found


def require_unchanged(files: Mapping[Path, Version]) -> None:
    """Raise BadInput naming a file that has another version now."""
    for path, version in files.items():
        if versions([path])[path] != version:
            raise BadInput(f"{path}: has changed while it was being imported; the same command starts over")


def portions(files: Mapping[Path, Version]) -> list[list[Extent]]:
    """All bytes of the files, in order, in portions of at most PORTION bytes."""
    made: list[list[Extent]] = [[]]
    held = 0
    for extent in _extents(files):
        if held + extent.length > PORTION:
            made.append([])
            held = 0
        made[-1].append(extent)
        held += extent.length
    return made


def _extents(files: Mapping[Path, Version]) -> Iterator[Extent]:
    for path, version in files.items():
        for start in range(0, max(version.size, 1), PORTION):
            yield Extent(path, start, min(version.size - start, PORTION))


def digest_extents(portion: Iterable[Extent]) -> str:
    """xxh3 of what the extents hold and of their lengths. Raises BadInput naming a file."""
    hasher = xxhash.xxh3_64()
    for extent in portion:
        with naming(f"{extent.path}: cannot be read"), extent.path.open("rb") as file:
            file.seek(extent.start)
            content = file.read(extent.length)
        hasher.update(len(content).to_bytes(8, "little"))
        hasher.update(content)
    return hasher.hexdigest()
