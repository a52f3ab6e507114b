"""Write a checkpoint: files in a hidden folder, written and fsynced, then the manifest, then the rename."""

import json
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import astuple, dataclass, field
from pathlib import Path
from types import MappingProxyType

import h5py
import numpy as np

from mpitrain.checkpoint.files import FORMAT, REPLACED, STATE, CarefulFile, describe, folders, order, write_manifest
from mpitrain.checkpoint.state import Numbers
from mpitrain.errors import BadInput
from mpitrain.files import exchanged, make_folders, room, sync, write_durably, writing
from mpitrain.flat import Array, Layout, block_slices
from mpitrain.sampling.queue import Work

BEST = "best"  # the checkpoint that holds only a `MODEL`, with its `error` among the numbers
MODEL, KEPT = "model", "kept"
PIECES = "rank-*.h5"
CHUNK = 1 << 20  # elements per chunk and per HDF5 call, which blocks all other calls of HDF5
SPARE = 1 << 20  # upper bound of the bytes that are needed beside the vectors
POLL_INTERVAL = 0.02  # seconds between two checks for other ranks' pieces
LOOKS = 10  # the fewest checks before a deadline expires: time in which the job was suspended does not count


@dataclass(frozen=True)
class FileContent:
    """The content of one file of a checkpoint: vectors by name, numbers, ranges of samples to hand out again, and what
    the model keeps beside its parameters, by name."""

    vectors: dict[str, Array]
    numbers: Numbers
    ranges: list[Work] = field(default_factory=list)
    kept: dict[str, Array] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Size of the vectors in bytes."""
        return sum(array.nbytes for array in (*self.vectors.values(), *self.kept.values()))


def file_of(rank: int) -> str:
    """The name of a rank's own piece."""
    return f"rank-{rank:05d}.h5"


class Draft:
    """A checkpoint being written. The master begins and commits it; in between, every rank may write its own piece.

    If something cannot be written, BadInput is raised, with one line that names the checkpoint.
    """

    def __init__(self, folder: Path, name: int | str) -> None:
        self.final = folder / (f"{name:012d}" if isinstance(name, int) else name)
        self.path = folder / f".writing-{self.final.name}"

    def begin(self, nbytes: int) -> None:
        """Create the temporary folder in a run folder that is there. Raises BadInput unless there is room for `nbytes`
        of vectors."""
        with writing(self.final):
            shutil.rmtree(self.path, ignore_errors=True)
            self.path.parent.mkdir(exist_ok=True)
            self.path.mkdir()
            free, needed = room(self.path), nbytes + SPARE
            if free < needed:
                shutil.rmtree(self.path, ignore_errors=True)
                raise OSError(28, f"it needs {needed / 1e6:,.1f} MB, the disk has {free / 1e6:,.1f} MB left")

    def write(self, name: str, piece: FileContent, layout: Layout) -> None:
        """Write one file; it gets this name only when it is complete. If it cannot be written, a file with the reason
        tells those who await it."""
        partial = self.path / f"{name}.partial"
        try:
            with writing(self.final):
                with CarefulFile(partial, "w+") as raw:
                    with h5py.File(raw, "w") as file:
                        _fill(file, piece, layout)
                    raw.finish()
                partial.rename(self.path / name)
        except BadInput as error:
            with suppress(OSError):
                partial.write_text(str(error))  # truncates the file first, so that a full disk has room for the reason
            with suppress(OSError):
                partial.rename(self.path / f"{name}.fault")  # a rename, so that nobody reads an incomplete reason
            raise

    def await_files(self, names: list[str], seconds: float) -> None:
        """Wait until other ranks have written these files. Raises BadInput if they cannot, or if they have not begun
        after `seconds`. A file that was begun is awaited however slow the disk is: a dead rank is noticed by its
        missing heartbeat."""
        waited, looked = 0.0, time.monotonic()
        with writing(self.final):
            while missing := [name for name in names if not (self.path / name).exists()]:
                if not self.path.is_dir():
                    raise BadInput(f"{self.final}: cannot be written: its folder is gone")
                for fault in self.path.glob("*.fault"):
                    raise BadInput(fault.read_text() or f"{self.final}: {fault.stem} cannot be written")
                now = time.monotonic()
                waited, looked = waited + min(now - looked, seconds / LOOKS), now
                if waited > seconds and (absent := [name for name in missing if not self._begun(name)]):
                    raise BadInput(f"{self.final}: waited {seconds:g} s for {', '.join(absent)} (run.deadline)")
                time.sleep(POLL_INTERVAL)

    def commit(self, keep: int = 0, documents: Mapping[str, str] = MappingProxyType({})) -> Path:
        """Write the documents, then the manifest, rename the folder, and delete all but the `keep` newest checkpoints
        up to this one (0: delete none)."""
        replaced = self.final.with_name(self.final.name + REPLACED)
        with writing(self.final):
            for name, text in documents.items():
                make_folders(self.path, name)
                write_durably(self.path / name, text)
            write_manifest(self.path, documents)
            if there := self.final.exists():
                shutil.rmtree(replaced, ignore_errors=True)
            if there and exchanged(self.path, self.final):
                replaced = self.path
            else:  # a kill in between leaves none of this name
                if there:
                    self.final.rename(replaced)
                self.path.rename(self.final)
            sync(self.final.parent)
            delete(replaced)
        if keep:
            for old in [path for path in folders(self.final.parent) if order(path) <= order(self.final)][:-keep]:
                delete(old)
        return self.final

    def write_alone(
        self, state: FileContent, layout: Layout, documents: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Write a checkpoint of this rank's vectors alone; nothing is left of one that fails. Raises BadInput."""
        try:
            self.begin(state.nbytes)
            self.write(STATE, state, layout)
            self.commit(documents=documents)
        except BaseException:
            self.abandon()
            raise

    def _begun(self, name: str) -> bool:
        """Whether a file is being written or is complete."""
        # the partial name is checked first, since the file loses it when it gets its final one
        return any((self.path / each).exists() for each in (f"{name}.partial", name))

    def abandon(self) -> None:
        """Delete the files that were written."""
        shutil.rmtree(self.path, ignore_errors=True)


def clear(folder: Path) -> None:
    """Delete the unfinished checkpoints and deletions of a killed run."""
    with suppress(OSError):
        for left in [*folder.glob(".writing-*"), *folder.glob(".deleting-*")]:
            shutil.rmtree(left, ignore_errors=True)


def _fill(file: h5py.File, piece: FileContent, layout: Layout) -> None:
    file.attrs["format"], file.attrs["layout"] = FORMAT, describe(layout)
    file.attrs["numbers"] = json.dumps(piece.numbers)
    table = np.array([astuple(work) for work in piece.ranges], dtype=np.int64).reshape(-1, 4)
    file.create_dataset("ranges", data=table, fletcher32=True, chunks=(max(len(table), 1), 4), maxshape=(None, 4))
    for name, vector in piece.vectors.items():
        chunk = min(vector.size, CHUNK)
        stored = file.create_dataset(name, vector.shape, vector.dtype, fletcher32=True, chunks=(chunk,))
        for part in block_slices(slice(0, vector.size), chunk):
            stored[part] = vector[part]
    for name, array in piece.kept.items():
        flat = array.reshape(-1)
        chunk = max(min(flat.size, CHUNK), 1)  # larger than an array of no element, which `maxshape` allows
        file.create_dataset(f"{KEPT}/{name}", data=flat, fletcher32=True, chunks=(chunk,), maxshape=(None,))


def delete(checkpoint: Path) -> None:
    """Delete a checkpoint. It is renamed first, so that no incomplete folder ever has a checkpoint's name."""
    hidden = checkpoint.with_name(f".deleting-{checkpoint.name}")
    shutil.rmtree(hidden, ignore_errors=True)  # what a killed process had begun to delete
    with suppress(OSError):
        checkpoint.rename(hidden)
        shutil.rmtree(hidden)
