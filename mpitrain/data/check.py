"""Verify a shard folder: every byte of every shard is read."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mpitrain.data.reader import ShardFile
from mpitrain.data.shards import folder_parts
from mpitrain.errors import BadInput


def run(options: argparse.Namespace) -> int:
    """The command; its exit status."""
    check(options.folder)
    return 0


def check(folder: Path) -> None:
    """Print a table of the parts, and a line for every bad shard. Raises BadInput naming the first of them."""
    table = table_of_parts("size")
    faults: list[BadInput] = []
    for part, paths in folder_parts(folder).items():
        home: dict[bytes, Path] = {}
        found = [figures for path in paths if (figures := _verified(path, home, faults))]
        if found:
            size = sum(path.stat().st_size for path in paths if path.exists())
            table.add_row(part, f"{len(found)} of {len(paths)}", *row(found), f"{size / 1e6:,.2f} MB")
    console = Console()
    console.print(table)
    for fault in faults:
        console.print(f"[bold]bad[/bold] {escape(str(fault))}", soft_wrap=True, highlight=False)
    if faults:
        raise faults[0]
    console.print("every checksum matches")


class Figures(NamedTuple):
    """The figures of a shard for a table."""

    samples: int
    utterances: int
    shape: str
    classes: int


def table_of_parts(*more: str) -> Table:
    """An empty table with the columns part, shards, those of `row`, and `more`."""
    return Table("part", "shards", "samples", "utterances", "input", "classes", *more, box=None, pad_edge=False)


def figures(file: ShardFile) -> Figures:
    """The figures of an open shard."""
    utterances = 0 if file.offsets is None else len(file.offsets) - 1
    return Figures(file.inputs[0], utterances, " x ".join(map(str, file.inputs[1:])) or "token", file.classes)


def row(found: Sequence[Figures]) -> tuple[str, ...]:
    """The cells for the shards of a part: samples, utterances, shape of an input, classes."""
    utterances = sum(each.utterances for each in found)
    counts = f"{sum(each.samples for each in found):,}", f"{utterances:,}" if utterances else ""
    return (*counts, found[0].shape, str(found[0].classes))


def _verified(path: Path, home: dict[bytes, Path], faults: list[BadInput]) -> Figures | None:
    """The figures of a shard after reading all of it; None, with an entry in `faults`, if it is bad.

    `home`: the shard of each utterance of the part so far, by key.
    """
    try:
        with ShardFile(path) as file:
            file.read_inputs()
            keys = [bytes(key) for key in file.small.get("keys", ())]
            if twice := [key for key in keys if home.setdefault(key, path) != path]:
                such = f"such as {twice[0].decode()} in {home[twice[0]].name}"
                raise BadInput(f"{path}: {len(twice):,} of its {len(keys):,} utterances are in other shards, {such}")
            return figures(file)._replace(shape=f"{figures(file).shape} {file.dtype}")
    except BadInput as fault:
        faults.append(fault)
        return None
