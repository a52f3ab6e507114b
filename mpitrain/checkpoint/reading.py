"""Find an intact checkpoint, and read it."""

import json
from math import inf
from pathlib import Path

import h5py
import numpy as np

from mpitrain.algorithms import Algorithm
from mpitrain.checkpoint.draft import BEST, KEPT, MODEL, PIECES, STATE, file_of
from mpitrain.checkpoint.files import REPLACED, describe, fault, folders
from mpitrain.checkpoint.state import Numbers, State, fresh
from mpitrain.errors import BadInput, naming
from mpitrain.flat import Array, Layout, fill
from mpitrain.sampling.queue import Queue, Work


def newest(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest intact checkpoint of a run, and a message for every torn one that is newer."""
    skipped: list[str] = []
    for candidate in reversed(folders(folder)):
        reason = fault(candidate)
        if reason is None:
            return candidate, skipped
        skipped.append(f"{candidate}: {reason}; skipped")
    return None, skipped


def find(folder: Path, name: str | None = None) -> tuple[Path, list[str]]:
    """The newest intact checkpoint, or the intact one called `name`; and a message for every torn one that is newer.

    Raises BadInput naming the folder.
    """
    if name is None:
        found, skipped = newest(folder)
        if found is None:
            raise BadInput(f"{folder}: no whole checkpoint")
        return found, skipped
    candidates = [path for path in (folder / name, folder / (name + REPLACED)) if path.is_dir()]
    reasons = {path: fault(path) for path in candidates}
    for path, reason in reasons.items():
        if reason is None:
            return path, []
    there = ", ".join(path.name for path in sorted(folder.glob("[!.]*"))) or "none"
    raise BadInput(f"{folder / name}: {next(iter(reasons.values()), 'no such checkpoint')}; there: {there}")


def best_error(folder: Path) -> float:
    """The error of the stored best model; infinity if there is none."""
    try:
        path, _ = find(folder, BEST)
        with h5py.File(path / STATE, "r") as file:
            return float(json.loads(file.attrs["numbers"])["error"])
    except (BadInput, OSError, KeyError, ValueError):
        return inf


def load_model(checkpoint: Path, options: Algorithm, layout: Layout, dtype: np.dtype) -> tuple[Array, int]:
    """The parameters to evaluate and export, and the samples that they were trained on. Raises BadInput."""
    state, path = fresh(options, np.zeros(layout.size, dtype), Queue(0, 0)), checkpoint / STATE
    numbers, _ = _read(path, {MODEL: state.theta}, layout, required=())
    if "error" in numbers:
        return state.theta, int(numbers["trained"])
    wanted = {name: state.vectors()[name] for name in options.model_from}
    _read(path, wanted, layout, required=tuple(wanted))
    return state.model, int(numbers["trained"])


def load_state(checkpoint: Path, state: State, layout: Layout) -> None:
    """Fill `state` from an intact checkpoint. Raises BadInput naming the file."""
    path = checkpoint / STATE
    if "average" in state.beside:  # if the checkpoint has no average, it begins at θ, not at the initial weights
        _read(path, {"theta": state.beside["average"]}, layout, required=("theta",))
    numbers, ranges = _read(path, state.vectors(), layout, required=("theta",))
    if numbers["samples"] != state.queue.samples:
        raise BadInput(f"{path}: was trained on {numbers['samples']} samples, data.path has another number")
    state.restore(numbers)
    if not state.beside.keys() <= _names(path):  # as of another optimizer
        state.began = state.index
    for work in ranges:
        state.queue.give_back(work)


def load_kept(checkpoint: Path) -> dict[str, Array]:
    """What the model keeps beside its parameters, by name, each array flat. Raises BadInput naming the file."""
    path = checkpoint / STATE
    try:
        with h5py.File(path, "r") as file:
            kept: dict[str, Array] = {}
            if KEPT in file:
                file[KEPT].visititems(lambda name, node: kept.update({name: node[:]}) if _is_array(node) else None)
            return kept
    except (OSError, KeyError, ValueError) as error:
        raise BadInput(f"{path}: {error}") from error


def _is_array(node: h5py.Dataset | h5py.Group) -> bool:
    return isinstance(node, h5py.Dataset)


def load_local(checkpoint: Path, rank: int, state: State, layout: Layout) -> None:
    """Fill the rank's own part of `state`. Raises BadInput naming the file."""
    path = checkpoint / file_of(rank)
    state.local_numbers = _read(path, state.local, layout, required=tuple(state.local))[0]


def pieces(checkpoint: Path) -> list[str]:
    """The names of the ranks' own pieces. Raises BadInput naming the checkpoint."""
    with naming(checkpoint):
        return sorted(path.name for path in checkpoint.iterdir() if path.match(PIECES))


def _names(path: Path) -> set[str]:
    """The vectors that a file holds."""
    with h5py.File(path, "r") as file:
        return set(file)


def _read(
    path: Path, vectors: dict[str, Array], layout: Layout, required: tuple[str, ...]
) -> tuple[Numbers, list[Work]]:
    with naming(path, OSError, KeyError, ValueError), h5py.File(path, "r") as file:
        if file.attrs["layout"] != describe(layout):
            raise BadInput(f"{path}: holds another network than [model] describes")
        for name, vector in vectors.items():
            if name in file or name in required:
                fill(vector, file[name][:])
        return json.loads(file.attrs["numbers"]), [Work(*map(int, row)) for row in file["ranges"][:]]
