"""Read named arrays from a file: an npz archive without pickles, or any HDF5 file."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Protocol
from zipfile import ZipInfo

import h5py
import numpy as np

from mpitrain.errors import BadInput, naming
from mpitrain.files import Version, hdf5, regular_size, version_of
from mpitrain.flat import Array

HDF5, ZIP = b"\x89HDF\r\n\x1a\n", b"PK\x03\x04"


class FileArray(Protocol):
    """An array in a file, which is read by slicing."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype: ...

    def __getitem__(self, rows: slice) -> Array: ...


@contextmanager
def opened(path: Path) -> Iterator[Mapping[str, FileArray]]:
    """The arrays of a file by name. Raises BadInput naming the file."""
    with naming(f"{path}: cannot be read", Exception):
        regular_size(path)
        with path.open("rb") as file:
            begins = file.read(8)
        if begins == HDF5:
            with hdf5.opened(path) as stored:
                yield _DataSets(stored)
        elif begins.startswith(ZIP):
            with np.load(path, allow_pickle=False) as archive:
                _require_room(archive.zip.infolist(), path)
                version = version_of(path.stat())
                yield {name: _Member(path, name, version) for name in archive.files}
        else:
            raise BadInput(f"{path}: {'neither npz nor HDF5' if begins else 'is empty'}")


def require(arrays: Mapping[str, FileArray], name: str, path: Path) -> FileArray:
    """The array of that name. Raises BadInput naming the file and the arrays that it has."""
    if name not in arrays:
        raise BadInput(f"{path}: has no array {name}, but {', '.join(sorted(arrays)) or 'none'}")
    return arrays[name]


def _require_room(members: list[ZipInfo], path: Path) -> None:
    """Raise ValueError for a member whose size is larger than an archive of this size can hold."""
    most = path.stat().st_size * hdf5.EXPANSION
    for member in members:
        if member.file_size > most:
            raise ValueError(f"{member.filename} would take {member.file_size:,} bytes")


class _DataSets(Mapping[str, FileArray]):
    """The data sets of an HDF5 file, including those in groups, as group/name."""

    def __init__(self, file: h5py.File) -> None:
        self._file = file

    def __getitem__(self, name: str) -> FileArray:
        return hdf5.data_set(self._file, name)

    def __iter__(self) -> Iterator[str]:
        return iter(hdf5.names(self._file))

    def __len__(self) -> int:
        return len(hdf5.names(self._file))


class _Member:
    """An array of an npz archive. It is read completely at first use, since this is what verifies its checksum."""

    def __init__(self, path: Path, name: str, version: Version) -> None:
        self._found = path, name, version

    @property
    def shape(self) -> tuple[int, ...]:
        return _loaded(*self._found).shape

    @property
    def dtype(self) -> np.dtype:
        return _loaded(*self._found).dtype

    def __getitem__(self, rows: slice) -> Array:
        return _loaded(*self._found)[rows]


@lru_cache(maxsize=4)
def _loaded(path: Path, name: str, version: Version) -> Array:
    with np.load(path, allow_pickle=False) as archive:
        return np.asarray(archive[name])
