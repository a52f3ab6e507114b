"""Read named arrays from a file: an npz archive without pickles, or any HDF5 file."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

import h5py
import numpy as np

from mpitrain.errors import BadInput, naming
from mpitrain.files import Version, hdf5, regular_status, version_of
from mpitrain.flat import Array

ZIP = b"PK\x03\x04"


FileArray: TypeAlias = h5py.Dataset | np.ndarray  #: an array that is read by slicing


class FileArrays(NamedTuple):
    """The arrays of a file. `whole`: each is read completely at first use."""

    path: Path
    names: Sequence[str]
    read: Callable[[str], FileArray]
    whole: bool

    def require(self, name: str) -> FileArray:
        """The array of that name. Raises BadInput naming the file and the arrays that it has."""
        try:
            return self.read(name)
        except KeyError:
            known = ", ".join(sorted(self.names)) or "none"
            raise BadInput(f"{self.path}: has no array {name}, but {known}") from None


@contextmanager
def opened(path: Path) -> Iterator[FileArrays]:
    """Context that gives a file's arrays, those in groups of HDF5 as group/name. Raises BadInput naming the file."""
    with naming(f"{path}: cannot be read", Exception):
        version = version_of(regular_status(path))
        with path.open("rb") as file:
            begins = file.read(len(ZIP))
        if h5py.is_hdf5(path):  # it need not begin so: those of MATLAB have text before
            with hdf5.opened(path) as stored:
                yield FileArrays(path, hdf5.names(stored), partial(hdf5.data_set, stored), whole=False)
        elif begins == ZIP:
            with np.load(path, allow_pickle=False) as archive:
                for member in archive.zip.infolist():
                    if member.file_size > version.size * hdf5.EXPANSION:
                        raise ValueError(f"{member.filename} would take {member.file_size:,} bytes")
                yield FileArrays(path, archive.files, lambda name: _loaded(path, name, version), whole=True)
        else:
            raise BadInput(f"{path}: {'neither npz nor HDF5' if begins else 'is empty'}")


@lru_cache(maxsize=4)
def _loaded(path: Path, name: str, version: Version) -> Array:
    """An array of an npz archive, read completely, since this is what verifies its checksum."""
    with np.load(path, allow_pickle=False) as archive:
        return np.asarray(archive[name])
