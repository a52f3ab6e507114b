"""Write predictions row by row, so that they are never all in memory: HDF5, npz, Kaldi ark with scp.

Every file is written under a temporary name and renamed when it is complete.
"""

import json
import os
import shutil
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import IO, Protocol

import h5py
import numpy as np

from mpitrain.errors import BadInput, library
from mpitrain.files import writing
from mpitrain.flat import Array

CHUNK = 1 << 20  # bytes


@dataclass(frozen=True)
class Content:
    """The content of a file: float32 rows [samples, classes] called `name`, the samples' targets int32, and `about`.

    For frames, `utterances` int64 [n+1] are the offsets where utterances begin, and `keys` their names; for images,
    each sample has an offset. `class_names`: the names of the classes from 0 on, if any.
    """

    name: str
    classes: int
    targets: Array
    utterances: Array
    keys: Sequence[str]
    about: Mapping[str, str | int]
    class_names: Sequence[str] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of all rows together."""
        return len(self.targets), self.classes


class RowWriter(Protocol):
    """Writes rows in order, any number at a time."""

    def write(self, rows: Array) -> None:
        """Write the next rows float32 [n, classes]."""


@contextmanager
def open_writer(path: Path, content: Content) -> Iterator[RowWriter]:
    """A writer for the file name's extension. The file exists only after the block has ended.

    Raises BadInput naming the file: an unknown extension, a full disk, a missing library.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        free, wanted = shutil.disk_usage(path.parent).free, 4 * content.shape[0] * content.shape[1]
        if free < wanted + (1 << 20):
            raise BadInput(f"{path}: needs {wanted} bytes, the disk has {free} left")
        with WRITERS[path.suffix](path, content) as writer:
            yield writer


def require_known(path: Path) -> None:
    """Raise BadInput for a file name without a writer, or if its library is missing."""
    if path.suffix not in WRITERS:
        raise BadInput(f"{path}: ends in none of {', '.join(WRITERS)}")
    if path.is_dir():
        raise BadInput(f"{path}: is a folder")
    if path.suffix == ".ark":
        _kaldiio()


@contextmanager
def replacing(*paths: Path) -> Iterator[list[Path]]:
    """Temporary paths, which are renamed to `paths`, in that order, unless an exception is raised."""
    temporary = [path.with_name(f".writing-{path.name}") for path in paths]
    try:
        yield temporary
        for written in temporary:
            with written.open("rb") as file:
                os.fsync(file.fileno())
        for path in reversed(paths):  # no old file may remain beside a new one
            path.unlink(missing_ok=True)
        for written, path in zip(temporary, paths, strict=True):
            written.replace(path)
    finally:
        for written in temporary:
            with suppress(OSError):
                written.unlink()


class _Hdf5:
    def __init__(self, file: h5py.File, content: Content) -> None:
        shape = content.shape
        rows = min(max(CHUNK // (4 * shape[1]), 1), shape[0])
        self._rows = file.create_dataset(content.name, shape, "f4", chunks=(rows, shape[1]), fletcher32=True)
        self._done = 0

    def write(self, rows: Array) -> None:
        self._rows[self._done : self._done + len(rows)] = rows
        self._done += len(rows)


@contextmanager
def _hdf5(path: Path, content: Content) -> Iterator[RowWriter]:
    with replacing(path) as [temporary], h5py.File(temporary, "w", libver=("v110", "v110")) as file:
        file.attrs.update(content.about)
        for name, array in _small(content).items():
            file.create_dataset(name, data=array, fletcher32=True, chunks=(min(len(array), CHUNK),))
        yield _Hdf5(file, content)


class _Npy:
    """The open member of an npz."""

    def __init__(self, member: IO[bytes], content: Content) -> None:
        header = {"descr": "<f4", "fortran_order": False, "shape": content.shape}
        np.lib.format.write_array_header_1_0(member, header)
        self._member = member

    def write(self, rows: Array) -> None:
        self._member.write(np.ascontiguousarray(rows, "<f4").tobytes())


@contextmanager
def _npz(path: Path, content: Content) -> Iterator[RowWriter]:
    with replacing(path) as [temporary], zipfile.ZipFile(temporary, "w") as file:
        for name, array in {**_small(content), "about": np.array(json.dumps(content.about))}.items():
            with file.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, np.char.decode(array) if array.dtype.kind == "S" else array)
        with file.open(f"{content.name}.npy", "w", force_zip64=True) as member:
            yield _Npy(member, content)


class _Ark:
    """Collects rows until an utterance is complete; the scp holds its position in the final ark."""

    def __init__(self, ark: IO[bytes], scp: IO[str], path: Path, content: Content) -> None:
        self._ark, self._scp, self._path, self._content = ark, scp, path.absolute(), content
        self._rows: list[Array] = []
        self._next, self._have = 0, 0

    def write(self, rows: Array) -> None:
        while len(rows):
            content = self._content
            length = int(content.utterances[self._next + 1] - content.utterances[self._next])
            taken = rows[: length - self._have]
            self._rows.append(taken.copy())
            self._have += len(taken)
            rows = rows[len(taken) :]
            if self._have == length:
                self._finish(content.keys[self._next])

    def _finish(self, key: str) -> None:
        begins = self._ark.tell() + len(key.encode()) + 1
        _kaldiio().save_ark(self._ark, {key: np.concatenate(self._rows)})
        self._scp.write(f"{key} {self._path}:{begins}\n")
        self._rows, self._have = [], 0
        self._next += 1


@contextmanager
def _ark(path: Path, content: Content) -> Iterator[RowWriter]:
    table = [path.with_suffix(".classes")] if content.class_names else []
    with (
        replacing(path, path.with_suffix(".scp"), *table) as temporary,
        temporary[0].open("wb") as rows,
        temporary[1].open("w", encoding="utf-8", errors="surrogateescape") as index,
    ):
        for symbols in temporary[2:]:  # as in Kaldi's symbol tables, each line holds a name and its number
            lines = (f"{name} {number}\n" for number, name in enumerate(content.class_names or ()))
            symbols.write_text("".join(lines), encoding="utf-8")
        yield _Ark(rows, index, path, content)


def _small(content: Content) -> dict[str, Array]:
    texts = {"keys": content.keys, "class_names": content.class_names}
    encoded = {name: np.char.encode(np.asarray(text, np.str_), "utf-8") for name, text in texts.items() if text}
    return {"targets": content.targets, "utterances": content.utterances, **encoded}


def _kaldiio() -> ModuleType:
    return library("kaldiio", "a .ark needs kaldiio (.h5 and .npz do not)", "kaldi")


WRITERS = {".h5": _hdf5, ".hdf5": _hdf5, ".npz": _npz, ".ark": _ark}
