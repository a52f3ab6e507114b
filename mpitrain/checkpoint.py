"""Checkpoints: a folder each, written under a temporary name, checksummed, renamed last.

`checkpoints/000000012800/` holds `state.h5` (vectors with fletcher32, counters), a `rank-00003.h5` for each rank that
keeps something of its own, and `manifest.json` with the size and xxh3 of every file. The name is the number of samples
trained on. A folder that does not match its manifest is torn: it is skipped and named.
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import xxhash

from mpitrain.algorithms import Algorithm
from mpitrain.assignments import Assignments, Work
from mpitrain.errors import BadInput
from mpitrain.flat import Array, Layout, fill, on_host
from mpitrain.state import State, fresh

FORMAT = 1


class Draft:
    """A checkpoint being written. The master begins and commits it; every rank may write its own piece between."""

    def __init__(self, folder: Path, samples: int) -> None:
        self.final = folder / f"{samples:012d}"
        self.path = folder / f".writing-{self.final.name}"

    def begin(self, nbytes: int) -> None:
        """Make the temporary folder. Raises BadInput when the disk has not `nbytes` left."""
        with _naming(self.final):
            shutil.rmtree(self.path, ignore_errors=True)
            self.path.mkdir(parents=True)
            _require_space(self.path, nbytes)

    def write_state(self, state: State, layout: Layout, outstanding: list[Work]) -> None:
        """The master's piece: what a run resumes from with any number of ranks."""
        ranges = [*state.assignments.returned, *outstanding]
        self._write("state.h5", state.vectors(), state.numbers(), layout, ranges)

    def write_local(self, rank: int, state: State, layout: Layout) -> None:
        """One rank's own piece: what only a run with the same ranks takes up again."""
        self._write(f"rank-{rank:05d}.h5", state.local, state.local_numbers, layout, [])

    def commit(self, keep: int) -> Path:
        """Write the manifest, give the folder its name, delete all but the newest `keep` checkpoints."""
        with _naming(self.final):
            _write_manifest(self.path)
            if self.final.exists():
                shutil.rmtree(self.final)
            self.path.rename(self.final)
            _sync(self.final.parent)
        for old in _folders(self.final.parent)[:-keep]:
            shutil.rmtree(old, ignore_errors=True)
        return self.final

    def _write(
        self, name: str, vectors: dict[str, Array], numbers: dict[str, float], layout: Layout, ranges: list[Work]
    ) -> None:
        with _naming(self.final), h5py.File(self.path / name, "w") as file:
            file.attrs["format"], file.attrs["layout"] = FORMAT, _describe(layout)
            file.attrs["numbers"] = json.dumps(numbers)
            table = np.array([astuple(work) for work in ranges], dtype=np.int64).reshape(-1, 4)
            file.create_dataset(
                "ranges", data=table, fletcher32=True, chunks=(max(len(table), 1), 4), maxshape=(None, 4)
            )
            for key, vector in vectors.items():
                file.create_dataset(key, data=on_host(vector), fletcher32=True, chunks=(min(vector.size, 1 << 20),))
        with _naming(self.final), (self.path / name).open("rb") as written:
            os.fsync(written.fileno())


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BadInput(f"{path}: cannot be written: {error.strerror or error}") from error


def newest(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest whole checkpoint of a run, and a line for every torn one that is newer."""
    skipped: list[str] = []
    for candidate in reversed(_folders(folder)):
        reason = _fault(candidate)
        if reason is None:
            return candidate, skipped
        skipped.append(f"{candidate}: {reason}; skipped")
    return None, skipped


def find(folder: Path, name: str | None = None) -> tuple[Path, list[str]]:
    """The newest whole checkpoint, or the whole one called `name`; and a line for every torn one that is newer.

    Raises BadInput naming the folder.
    """
    if name is None:
        found, skipped = newest(folder)
        if found is None:
            raise BadInput(f"{folder}: no whole checkpoint")
        return found, skipped
    reason = _fault(folder / name) if (folder / name).is_dir() else "no such checkpoint"
    if reason is not None:
        there = ", ".join(path.name for path in sorted(folder.glob("[!.]*"))) or "none"
        raise BadInput(f"{folder / name}: {reason}; there: {there}")
    return folder / name, []


def load_model(checkpoint: Path, options: Algorithm, layout: Layout, dtype: np.dtype) -> tuple[Array, int]:
    """The parameters to evaluate and export, and the samples that they were trained on. Raises BadInput."""
    state = fresh(options, np.zeros(layout.size, dtype), Assignments(0, 0))
    path = checkpoint / "state.h5"
    numbers, _ = _read(path, {"theta": state.theta}, layout, required=("theta",))
    if state.average is not None:
        _read(path, {"average": state.average}, layout, required=("average",))
    if state.look_ahead:
        _read(path, {"velocity": state.velocity}, layout, required=("velocity",))
    return state.model, int(numbers["trained"])


def load_state(checkpoint: Path, state: State, layout: Layout) -> None:
    """Fill `state` from a whole checkpoint. Raises BadInput naming the file."""
    path = checkpoint / "state.h5"
    numbers, ranges = _read(path, state.vectors(), layout, required=("theta",))
    if numbers["samples"] != state.assignments.samples:
        raise BadInput(f"{path}: was trained on {numbers['samples']} samples, data.path has another number")
    state.restore(numbers)
    for work in ranges:
        state.assignments.give_back(work)


def load_local(checkpoint: Path, rank: int, state: State, layout: Layout) -> None:
    """Fill the rank's own part of `state`. Raises BadInput naming the file."""
    path = checkpoint / f"rank-{rank:05d}.h5"
    state.local_numbers = _read(path, state.local, layout, required=tuple(state.local))[0]


def locals_in(checkpoint: Path) -> int:
    """How many ranks left a piece of their own."""
    return len(list(checkpoint.glob("rank-*.h5")))


def _read(
    path: Path, vectors: dict[str, Array], layout: Layout, required: tuple[str, ...]
) -> tuple[dict[str, Any], list[Work]]:
    try:
        with h5py.File(path, "r") as file:
            if file.attrs["layout"] != _describe(layout):
                raise BadInput(f"{path}: holds another network than model.preset and its options describe")
            for name, vector in vectors.items():
                if name in file or name in required:
                    fill(vector, file[name][:])
            return json.loads(file.attrs["numbers"]), [Work(*map(int, row)) for row in file["ranges"][:]]
    except BadInput:
        raise
    except (OSError, KeyError, ValueError) as error:
        raise BadInput(f"{path}: {error}") from error


def _describe(layout: Layout) -> str:
    return json.dumps([[p.name, list(p.shape)] for p in layout.parameters])


def _write_manifest(folder: Path) -> None:
    files = {path.name: _digest(path) for path in sorted(folder.iterdir())}
    manifest = folder / "manifest.json"
    manifest.write_text(json.dumps({"format": FORMAT, "files": files}, indent=1) + "\n")
    with manifest.open("rb") as written:
        os.fsync(written.fileno())
    _sync(folder)


def _fault(folder: Path) -> str | None:
    """Why a checkpoint is torn; None for a whole one."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        if manifest["format"] != FORMAT:
            return f"format {manifest['format']} is not {FORMAT}"
        for name, digest in manifest["files"].items():
            if _digest(folder / name) != digest:
                return f"{name} does not match its checksum"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"torn ({error})"
    return None


def _digest(path: Path) -> dict[str, Any]:
    hasher = xxhash.xxh3_64()
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            hasher.update(chunk)
    return {"bytes": path.stat().st_size, "xxh3": hasher.hexdigest()}


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("[0-9]*") if path.is_dir()) if folder.is_dir() else []


def _require_space(folder: Path, nbytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < nbytes + (1 << 20):
        raise OSError(28, f"needs {nbytes} bytes, the disk has {free} left")


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
