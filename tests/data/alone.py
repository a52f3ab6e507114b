"""A rank that is alone, and imports with it: what the tests of importers share."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from mpitrain.__main__ import parser
from mpitrain.data.importers.importing import Importing
from mpitrain.data.importers.plan import CorpusPlan
from mpitrain.data.reader import ShardFile
from mpitrain.data.shards import folder_parts
from mpitrain.data.validation import INPUTS, Value
from mpitrain.errors import BadInput


class Alone:
    """A transport without other ranks."""

    rank, size, cores, yielding = 0, 1, 1, 0.0

    working = nullcontext  # nobody waits for it

    def sum(self, array: np.ndarray, what: str) -> None:
        """Nobody else adds."""

    def gather_texts(self, text: str, what: str) -> list[str]:
        """Its own."""
        return [text]

    def barrier(self, what: str) -> None:
        """Nobody to wait for."""


def planned(name: str, source: object, *words: object) -> CorpusPlan:
    """The plan that `prepare NAME SOURCE` makes with these words for a folder that does not exist."""
    options = parser("prepare").parse_args(["prepare", name, str(source), "nowhere", *map(str, words)])
    return options.planning(options)  # type: ignore[no-any-return]


class Shard(NamedTuple):
    """A complete shard in memory."""

    kind: str
    arrays: dict[str, np.ndarray]
    attributes: dict[str, Value]


def read_shard(path: Path) -> Shard:
    """Read a complete shard and verify every checksum."""
    with ShardFile(path) as file:
        return Shard(file.kind, {INPUTS[file.kind]: file.read_inputs(), **file.small}, file.attributes)


def imported(folder: Path, planning: Callable[[], CorpusPlan]) -> dict[str, dict[str, Any]]:
    """Import in this process; by part the arrays, concatenated, and the attributes of the last shard."""
    assert Importing(Alone(), folder, 1).run(planning) == 0  # type: ignore[arg-type]
    return read(folder)


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """The arrays and attributes of a folder's parts."""
    parts = {}
    for part, paths in folder_parts(folder).items():
        shards = [read_shard(path) for path in paths]
        arrays = {name: np.concatenate([shard.arrays[name] for shard in shards]) for name in shards[0].arrays}
        parts[part] = {**shards[-1].attributes, **arrays, "shards": len(shards)}
    return parts


def refused(folder: Path, planning: Callable[[], CorpusPlan], line: str, capsys: Any) -> None:
    """The import raises BadInput with that one line, and leaves nothing behind that a training would take."""
    with pytest.raises(BadInput) as caught:
        Importing(Alone(), folder, 1).run(planning)  # type: ignore[arg-type]
    assert line in str(caught.value) and "\n" not in str(caught.value), caught.value
    assert caught.value.agreed and caught.value.spoken_here  # its line is said where the program ends
    assert "mpitrain: " not in capsys.readouterr().err
    assert not list(folder.glob("[!.]*")) and not list(folder.glob(".writing*"))
