"""Write predictions row by row, so that they are never all in memory: HDF5, npz, Kaldi ark with scp.

Every file is written under a temporary name and renamed when it is complete.
"""

import json
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import h5py
import numpy as np

from mpitrain.errors import BadInput, library
from mpitrain.files import replacing, room, writing
from mpitrain.flat import Array

CHUNK = 1 << 20  # bytes
BESIDE = 1 << 20  # upper bound of a file's bytes beside its rows, for the test of free disk space


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


Write = Callable[[Array], None]  # the next rows float32 [n, classes], any number at a time


@contextmanager
def open_writer(path: Path, content: Content) -> Iterator[Write]:
    """A context with a function that writes rows in the format of the file's extension; the file exists only after it.

    Raises BadInput naming the file: an unknown extension, a full disk, a missing library.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        free, wanted = room(path.parent), 4 * content.shape[0] * content.shape[1] + BESIDE
        if free < wanted:
            raise BadInput(f"{path}: needs up to {wanted:,} bytes, the disk has {free:,} left")
        with WRITERS[path.suffix](path, content) as write:
            yield write


def require_known(path: Path) -> None:
    """Raise BadInput for a file name without a writer, or if its library is missing."""
    if path.suffix not in WRITERS:
        raise BadInput(f"{path}: ends in none of {', '.join(WRITERS)}")
    if path.is_dir():
        raise BadInput(f"{path}: is a folder")
    if path.suffix == ".ark":
        _kaldiio()


@contextmanager
def _hdf5(path: Path, content: Content) -> Iterator[Write]:
    (samples, classes), done = content.shape, 0

    def write(rows: Array) -> None:
        nonlocal done
        dataset[done : done + len(rows)] = rows
        done += len(rows)

    with replacing(path) as [temporary], h5py.File(temporary, "w", libver=("v110", "v110")) as file:
        file.attrs.update(content.about)
        for name, array in _small(content).items():
            file.create_dataset(name, data=array, fletcher32=True, chunks=(min(len(array), CHUNK),))
        chunk = min(max(CHUNK // (4 * classes), 1), samples)
        dataset = file.create_dataset(content.name, content.shape, "f4", chunks=(chunk, classes), fletcher32=True)
        yield write


@contextmanager
def _npz(path: Path, content: Content) -> Iterator[Write]:
    with replacing(path) as [temporary], zipfile.ZipFile(temporary, "w") as file:
        for name, array in {**_small(content), "about": np.array(json.dumps(content.about))}.items():
            with file.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, np.char.decode(array) if array.dtype.kind == "S" else array)
        with file.open(f"{content.name}.npy", "w", force_zip64=True) as member:
            header = {"descr": "<f4", "fortran_order": False, "shape": content.shape}
            np.lib.format.write_array_header_1_0(member, header)

            def write(rows: Array) -> None:
                member.write(np.ascontiguousarray(rows, "<f4").tobytes())

            yield write


@contextmanager
def _ark(path: Path, content: Content) -> Iterator[Write]:
    """Rows are collected until an utterance is complete; the scp holds its position in the final ark."""
    kaldiio, have = _kaldiio(), list[Array]()
    utterances = zip(content.keys, np.diff(content.utterances), strict=True)
    key, length = next(utterances, ("", 0))

    def write(more: Array) -> None:
        nonlocal key, length
        while len(more):
            taken, more = more[:length], more[length:]
            have.append(taken.copy())
            length -= len(taken)
            if not length:
                index.write(f"{key} {path.absolute()}:{rows.tell() + len(key.encode()) + 1}\n")
                kaldiio.save_ark(rows, {key: np.concatenate(have)})
                have.clear()
                key, length = next(utterances, ("", 0))

    table = [path.with_suffix(".classes")] if content.class_names else []
    with (
        replacing(path, path.with_suffix(".scp"), *table) as temporary,
        temporary[0].open("wb") as rows,
        temporary[1].open("w", encoding="utf-8", errors="surrogateescape") as index,
    ):
        for symbols in temporary[2:]:  # as in Kaldi's symbol tables, each line holds a name and its number
            lines = (f"{name} {number}\n" for number, name in enumerate(content.class_names or ()))
            symbols.write_text("".join(lines), encoding="utf-8")
        yield write


def _small(content: Content) -> dict[str, Array]:
    texts = {"keys": content.keys, "class_names": content.class_names}
    encoded = {name: np.char.encode(np.asarray(text, np.str_), "utf-8") for name, text in texts.items() if text}
    return {"targets": content.targets, "utterances": content.utterances, **encoded}


def _kaldiio() -> ModuleType:
    return library("kaldiio", "a .ark needs kaldiio (.h5 and .npz do not)", "kaldi")


WRITERS = {".h5": _hdf5, ".hdf5": _hdf5, ".npz": _npz, ".ark": _ark}
