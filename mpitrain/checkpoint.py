"""Checkpoints: a folder each, written under a temporary name, checksummed, renamed last.

`checkpoints/000000012800/` holds `state.h5` (vectors with fletcher32, counters) and `manifest.json` with the size and
xxh3 of every file. The name is the number of samples trained on. A folder that does not match its manifest is torn: it
is skipped and named.
"""

import json
import os
import shutil
from dataclasses import astuple
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import xxhash

from mpitrain.assignments import Work
from mpitrain.errors import BadInput
from mpitrain.flat import Layout
from mpitrain.state import State

FORMAT = 1


def save(folder: Path, state: State, layout: Layout, outstanding: list[Work], keep: int) -> Path:
    """Write a checkpoint into `folder`, then delete all but the newest `keep`. Raises BadInput when the disk refuses."""
    final = folder / f"{state.trained:012d}"
    temporary = folder / f".writing-{final.name}"
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        _require_space(folder, sum(vector.nbytes for vector in state.vectors().values()))
        _write_state(temporary / "state.h5", state, layout, outstanding)
        _write_manifest(temporary)
        if final.exists():
            shutil.rmtree(final)
        temporary.rename(final)
        _sync(folder)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise BadInput(f"{final}: cannot be written: {error.strerror or error}") from error
    for old in _folders(folder)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def newest(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest whole checkpoint of a run, and a line for every torn one that is newer."""
    skipped: list[str] = []
    for candidate in reversed(_folders(folder)):
        reason = _fault(candidate)
        if reason is None:
            return candidate, skipped
        skipped.append(f"{candidate}: {reason}; skipped")
    return None, skipped


def load(checkpoint: Path, state: State, layout: Layout) -> list[Work]:
    """Fill `state` from a whole checkpoint; the ranges that were in flight. Raises BadInput naming the file."""
    path = checkpoint / "state.h5"
    try:
        with h5py.File(path, "r") as file:
            return _read_state(file, path, state, layout)
    except (OSError, KeyError, ValueError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{path}: {error}") from error


def _write_state(path: Path, state: State, layout: Layout, outstanding: list[Work]) -> None:
    with h5py.File(path, "w") as file:
        file.attrs["format"] = FORMAT
        file.attrs["layout"] = _describe(layout)
        file.attrs["numbers"] = json.dumps(
            {
                "index": state.index,
                "trained": state.trained,
                "position": state.assignments.position,
                "samples": state.assignments.samples,
                "seconds": state.seconds,
            }
        )
        ranges = [astuple(work) for work in [*state.assignments.returned, *outstanding]]
        file.create_dataset("ranges", data=np.array(ranges, dtype=np.int64).reshape(-1, 4))
        for name, vector in state.vectors().items():
            file.create_dataset(name, data=vector, fletcher32=True, chunks=(min(vector.size, 1 << 20),))
        file.flush()
    with path.open("rb") as written:
        os.fsync(written.fileno())


def _read_state(file: h5py.File, path: Path, state: State, layout: Layout) -> list[Work]:
    if file.attrs["layout"] != _describe(layout):
        raise BadInput(f"{path}: holds another network than model.preset and its options describe")
    numbers = json.loads(file.attrs["numbers"])
    if numbers["samples"] != state.assignments.samples:
        raise BadInput(f"{path}: was trained on {numbers['samples']} samples, data.path has another number")
    for name in ("theta", "velocity", "average"):
        if name in file and (name == "theta" or getattr(state, name) is not None):
            np.copyto(getattr(state, name), file[name][:])
    state.index, state.trained = numbers["index"], numbers["trained"]
    state.seconds, state.assignments.position = numbers["seconds"], numbers["position"]
    return [Work(*map(int, row)) for row in file["ranges"][:]]


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
