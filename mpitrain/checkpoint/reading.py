"""Find an intact checkpoint, and read it."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import zip_longest
from math import inf
from pathlib import Path

import h5py
import msgspec

from mpitrain.checkpoint.draft import BEST, KEPT, MODEL, PIECES, file_of
from mpitrain.checkpoint.files import REPLACED, STATE, describe, fault, folders
from mpitrain.checkpoint.state import MasterNumbers, Numbers, State, Vectors, checked
from mpitrain.errors import BadInput, naming, printable
from mpitrain.files import hdf5
from mpitrain.flat import Array, Layout, fill
from mpitrain.sampling.queue import Natural, Row, Work, of_rows

MOST_RANGES = 1 << 20


class Best(msgspec.Struct, frozen=True):
    """The numbers of the best model: its figure of merit, called `merit`, on the data `of`, and the samples that it was
    trained on."""

    error: float
    trained: Natural
    merit: str = "error"
    of: str = ""


def newest(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest intact checkpoint of a run, and a message for every torn one that is newer."""
    torn: list[str] = []
    for candidate in reversed(folders(folder)):
        reason = fault(candidate)
        if reason is None:
            return candidate, [f"{each}; skipped" for each in torn]
        torn.append(printable(f"{candidate}: {reason}"))
    return None, torn


def find(folder: Path, name: str | None = None) -> tuple[Path, list[str]]:
    """The newest intact checkpoint, or the intact one called `name`; and a message for every torn one that is newer.

    Raises BadInput naming the folder.
    """
    if name is None:
        found, torn = newest(folder)
        if found is None:
            raise BadInput(f"{folder}: no whole checkpoint{f' ({torn[0]})' if torn else ''}")
        return found, torn
    with naming(folder / name):
        candidates = [path for path in (folder / name, folder / (name + REPLACED)) if name and path.is_dir()]
        reasons = {path: fault(path) for path in candidates}
        for path, reason in reasons.items():
            if reason is None:
                return path, []
        there = ", ".join(path.name for path in sorted(folder.glob("[!.]*"))) or "none"
    raise BadInput(f"{folder / name}: {next(iter(reasons.values()), 'no such checkpoint')}; there: {there}")


def best_error(folder: Path, merit: str = "error", of: str = "") -> float:
    """The figure `merit` of the stored best model; infinity if there is none, or it was the best by another figure, or
    on other data than those that `of` tells apart, if both are known."""
    try:
        path, _ = find(folder, BEST)
        with opened(path / STATE) as file:
            best = checked(numbers(file), Best)
            return best.error if best.merit == merit and (best.of == of or "" in (best.of, of)) else inf
    except BadInput:
        return inf


def load_model(checkpoint: Path, state: State, needed: Iterable[str], layout: Layout) -> tuple[Array, int]:
    """The parameters to evaluate and export, and the samples that they were trained on. `state` is filled with the
    `needed` vectors from which they follow. Raises BadInput."""
    with opened(checkpoint / STATE) as file:
        _require_layout(file, layout)
        if hdf5.has(file, MODEL):
            _fill(file, {MODEL: state.theta})
            return state.theta, checked(numbers(file), Best).trained
        _fill(file, {name: state.vectors()[name] for name in needed})
        return state.model, checked(numbers(file), MasterNumbers).trained


def load_state(checkpoint: Path, state: State, layout: Layout) -> None:
    """Fill `state` from an intact checkpoint. Raises BadInput naming the file."""
    path = checkpoint / STATE
    with opened(path) as file:
        _require_layout(file, layout)
        if "average" in state.beside:  # if the checkpoint has no average, it begins at θ, not at the initial weights
            fill(state.beside["average"], vector(file, "theta", state.theta)[:])
        # If it lacks some, as that of another optimizer does, all begin here: they count their steps from one place.
        whole = all(hdf5.has(file, name) for name in state.beside)
        _fill(file, {"theta": state.theta, **(state.beside if whole else {})})
        past = checked(numbers(file), MasterNumbers)
        if (samples := past.samples) != state.queue.samples:
            raise BadInput(f"{path}: was trained on {samples} samples, data.path has another number")
        state.restore(past)
        if not whole:
            state.began = state.index
        for work in _ranges(file, samples):
            state.queue.give_back(work)


def load_kept(checkpoint: Path) -> dict[str, Array]:
    """What the model keeps beside its parameters, by name, each array flat. Raises BadInput naming the file."""
    with opened(checkpoint / STATE) as file:
        names = hdf5.names(file, KEPT) if hdf5.has(file, KEPT) else []
        found = {name: array(file, name) for name in names}
        return {name: each[:] for name, each in found.items()}


def load_local(checkpoint: Path, rank: int, state: State, layout: Layout) -> None:
    """Fill the rank's own part of `state`. Its numbers are not checked. Raises BadInput naming the file.

    A vector that the file lacks and that begins at 0, such as a velocity, belongs to a key that was added since then.
    """
    with opened(checkpoint / file_of(rank)) as file:
        _require_layout(file, layout)
        _fill(file, {name: own for name, own in state.local.items() if own.any() or hdf5.has(file, name)})
        state.local_numbers = numbers(file)


def pieces(checkpoint: Path) -> list[str]:
    """The names of the ranks' own pieces. Raises BadInput naming the checkpoint."""
    with naming(checkpoint):
        return sorted(path.name for path in checkpoint.iterdir() if path.match(PIECES))


# ---- one file, which need not be written by this program


@contextmanager
def opened(path: Path) -> Iterator[h5py.File]:
    """Context with an open file of a checkpoint. Its errors raise BadInput naming it, also within the context."""
    with naming(path, *hdf5.ERRORS), hdf5.opened(path) as file:
        yield file


def vector(file: h5py.File, name: str, like: Array) -> h5py.Dataset:
    """The vector of this name, which has as many elements as `like`, and is of whole numbers if that is."""
    found = hdf5.data_set(file, name, expansion=1)
    if found.shape != like.shape or found.dtype.kind != like.dtype.kind or found.dtype.itemsize > 8:
        raise ValueError(f"{name} is {found.dtype} {list(found.shape)}, expected {like.dtype} {list(like.shape)}")
    return found


def array(file: h5py.File, name: str) -> h5py.Dataset:
    """The array of this name that the model keeps beside the vectors: flat, of numbers or truth values."""
    found = hdf5.data_set(file, f"{KEPT}/{name}", expansion=1)
    if found.ndim != 1 or found.dtype.kind not in "biufc":
        raise ValueError(f"{name} is {found.dtype} {list(found.shape)}")
    return found


def numbers(file: h5py.File) -> Numbers:
    """The numbers as they were written, unchecked (see `checked`)."""
    found = json.loads(hdf5.text(file, "numbers"))
    if not isinstance(found, dict):
        raise ValueError("its numbers have no names")
    return found


def _fill(file: h5py.File, vectors: Vectors) -> None:
    for name, own in vectors.items():
        fill(own, vector(file, name, own)[:])


def _ranges(file: h5py.File, samples: int) -> list[Work]:
    table = hdf5.data_set(file, "ranges", expansion=1)
    if table.ndim != 2 or table.shape[1] != 4 or table.dtype.kind != "i" or len(table) > MOST_RANGES:
        raise ValueError(f"ranges are {table.dtype} {list(table.shape)}")
    return of_rows(msgspec.convert(table[:].tolist(), list[Row]), samples)


def _require_layout(file: h5py.File, layout: Layout) -> None:
    there, wanted = (json.loads(text) for text in (hdf5.text(file, "layout"), describe(layout)))
    its, ours = next((pair for pair in zip_longest(there, wanted) if pair[0] != pair[1]), (None, None))
    if its != ours:
        what = f"its {its or 'end'} stands where {ours or 'the end'} is now"
        raise BadInput(f"{file.filename}: holds another network than [model] describes: {what[:300]}")
