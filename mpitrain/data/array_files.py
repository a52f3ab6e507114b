"""Read named arrays from a file: an npz archive without pickles, or any HDF5 file."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any
from zipfile import ZipInfo

import h5py
import numpy as np

from mpitrain.data.hdf5 import EXPANSION, data_set
from mpitrain.errors import BadInput
from mpitrain.flat import Array

HDF5, ZIP = b"\x89HDF\r\n\x1a\n", b"PK\x03\x04"


@contextmanager
def opened(path: Path) -> Iterator[Mapping[str, Any]]:
    """The arrays by name: objects with shape and dtype that are read by slicing. Raises BadInput naming the file."""
    with naming(path):
        with path.open("rb") as file:
            begins = file.read(8)
        if begins == HDF5:
            with h5py.File(path, "r") as hdf5:
                yield _DataSets(hdf5)
        elif begins.startswith(ZIP):
            with np.load(path, allow_pickle=False) as archive:
                _require_room(archive.zip.infolist(), path)
                yield {name: _Member(path, name) for name in archive.files}
        else:
            raise BadInput(f"{path}: {'neither npz nor HDF5' if begins else 'is empty'}")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn any exception that a reader raises on a damaged file into BadInput naming the file."""
    try:
        yield
    except BadInput:
        raise
    except Exception as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
        raise BadInput(f"{path}: cannot be read: {reason}") from error


def require(arrays: Mapping[str, Any], name: str, path: Path) -> Any:
    """The array of that name. Raises BadInput naming the file and the arrays that it has."""
    if name not in arrays:
        raise BadInput(f"{path}: has no array {name}, but {', '.join(sorted(arrays)) or 'none'}")
    return arrays[name]


def _require_room(members: list[ZipInfo], path: Path) -> None:
    """Raise ValueError for a member whose size is larger than an archive of this size can hold."""
    most = path.stat().st_size * EXPANSION
    for member in members:
        if member.file_size > most:
            raise ValueError(f"{member.filename} would take {member.file_size:,} bytes")


class _DataSets(Mapping[str, Any]):
    """The data sets of an HDF5 file, including those in groups, as group/name."""

    def __init__(self, file: h5py.File) -> None:
        self._file, self._names = file, list[str]()
        file.visititems(lambda name, item: self._names.append(name) if isinstance(item, h5py.Dataset) else None)

    def __getitem__(self, name: str) -> Any:
        return data_set(self._file, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class _Member:
    """An array of an npz archive. It is read completely at first use, since this is what verifies its checksum."""

    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name = path, name

    @property
    def shape(self) -> tuple[int, ...]:
        return _loaded(self._path, self._name).shape

    @property
    def dtype(self) -> Any:
        return _loaded(self._path, self._name).dtype

    def __getitem__(self, rows: Any) -> Array:
        return _loaded(self._path, self._name)[rows]


@lru_cache(maxsize=4)
def _loaded(path: Path, name: str) -> Array:
    with np.load(path, allow_pickle=False) as archive:
        return np.asarray(archive[name])
