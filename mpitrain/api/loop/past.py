"""A save of `ranks.save`, as one rank reads it."""

import json
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from mpitrain.checkpoint import file_of
from mpitrain.checkpoint.files import STATE, describe
from mpitrain.checkpoint.reading import array, numbers, opened, vector
from mpitrain.checkpoint.state import checked
from mpitrain.errors import BadInput
from mpitrain.files import hdf5
from mpitrain.flat import Array, Layout
from mpitrain.sampling.queue import Natural, Positive

#: What takes effect once all ranks have read what they need.
Apply = Callable[[], None]


class UserNumbers(msgspec.Struct, frozen=True):
    """The user's states, as `users.flattened` gives them; `kind`: the optimizer's class; `groups`: parameter names;
    `transient`: the names of buffers that need not fit."""

    kind: str
    groups: list[list[str]]
    optimizer: Any
    module: Any
    extra: Any
    random: Any
    transient: list[str]


class Clock(msgspec.Struct, frozen=True):
    """How far a training was when it was saved."""

    t: Natural  # batches that were trained on
    epoch: Natural
    handed: Natural  # batches of this epoch that were handed out
    samples: Natural  # of all ranks so far


class LoopNumbers(msgspec.Struct, frozen=True):
    """A rank's numbers: who has saved, and when; those of the method and of the user's objects."""

    algorithm: str
    ranks: Positive
    clock: Clock
    method: dict[str, Any]
    user: UserNumbers
    seed: int  # of the order of samples


def part_of(rank: int) -> str:
    """The file of a rank."""
    return file_of(rank) if rank else STATE


class Past:
    """What rank `rank` of `ranks` finds in the whole save `folder`: its own part if as many ranks have saved, else
    that of the rank number `rank` modulo theirs. `seed` is that of the order in which the samples now come.

    Everything raises BadInput naming the file and what of it does not fit.
    """

    def __init__(self, folder: Path, algorithm: str, layout: Layout, rank: int, ranks: int, seed: int) -> None:
        self.folder = folder
        first = self._numbers(0)
        if first.algorithm != algorithm:
            raise BadInput(f"{folder / STATE}: algorithm is {first.algorithm}, not {algorithm}")
        _require_module(folder / STATE, layout)
        self.ranks, self.same, self.rank = first.ranks, first.ranks == ranks, rank
        self._source = rank % first.ranks
        self.numbers = self._numbers(self._source)
        self.clock = (self.numbers if self.same else first).clock
        others = "" if self.same else f"by {first.ranks} ranks, whose batches are not those of {ranks}"
        if first.seed != seed:
            others = others or f"with seed={first.seed}, whose batches are not those of seed={seed}"
        if others and self.clock.handed:
            line = f"saved within epoch {self.clock.epoch} {others}"
            raise BadInput(f"{folder}: {line}; a save between two epochs goes on")

    @property
    def file(self) -> Path:
        """The file that this rank reads."""
        return self.folder / part_of(self._source)

    def vector(self, name: str, like: Array, rank: int | None = None) -> Array:
        """A vector as long as `like`, and finite, of this rank's part or another's."""
        found = self._read(name, partial(vector, like=like), rank)
        if not np.isfinite(found).all():
            raise BadInput(f"{self.file}: {name} is not finite")
        return found.astype(like.dtype, copy=False)

    def array(self, name: str) -> Array:
        """One of the user's arrays, flat."""
        return self._read(name, array)

    def _read(self, name: str, read: Callable[..., Any], rank: int | None = None) -> Array:
        with opened(self.folder / part_of(self._source if rank is None else rank)) as file, suppress(KeyError):
            return read(file, name)[:]
        with opened(self.folder / STATE) as file:  # rank 0 has it, too
            return read(file, name)[:]

    def _numbers(self, rank: int) -> LoopNumbers:
        with opened(self.folder / part_of(rank)) as file:
            return checked(numbers(file), LoopNumbers)


def _require_module(path: Path, layout: Layout) -> None:
    with opened(path) as file:
        saved, own = json.loads(hdf5.text(file, "layout")), json.loads(describe(layout))
        if saved != own:
            theirs, ours = next(((a, b) for a, b in zip(saved, own, strict=False) if a != b), (len(saved), len(own)))
            raise ValueError(f"saved of another module: it has {_told(theirs)}, this one {_told(ours)}")


def _told(parameter: object) -> str:
    match parameter:
        case [str(name), list(shape)]:
            return f"{name} {shape}"
    return f"{parameter} parameters"
