"""Verify a shard folder: every byte of every shard is read."""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.markup import escape
from rich.table import Table

from mpitrain.console import open_plain
from mpitrain.data.normalising import UNNORMALISED
from mpitrain.data.reader import ShardFile
from mpitrain.data.shards import class_names, folder_parts
from mpitrain.errors import BadInput, printable
from mpitrain.flat import Array

LISTED = 20  # most classes that a line names


def run(options: argparse.Namespace) -> int:
    """Run `mpitrain check`; return the exit status."""
    check(options.folder)
    return 0


def check(folder: Path) -> None:
    """Print a table of the parts, and a line for every bad shard. Raises BadInput naming the first bad one."""
    table = table_of_parts("size")
    faults, parts = list[BadInput](), folder_parts(folder)
    shards = {path for paths in parts.values() for path in paths}
    others = sorted(printable(path.name) for path in folder.glob("[!.]*.h5") if path not in shards)
    lines = [f"warning: {name} is not read: shards are called as in docs/shards.md" for name in others]
    for part, paths in parts.items():
        home: dict[bytes, Path] = {}
        found = [figures for path in paths if (figures := _verified(path, home, faults))]
        if found:
            size = sum(path.stat().st_size for path in paths if path.exists())
            table.add_row(part, f"{len(found)} of {len(paths)}", *row(found), f"{size / 1e6:,.2f} MB")
            lines += lines_of_classes(part, found)
            if part == "train" and not all(each.normalised for each in found):
                lines.append(f"warning: {part}: {UNNORMALISED}: data.normalise = corpus or mean has no effect")
    console = open_plain()
    console.print(table)
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)
    for fault in faults:
        console.print(f"[bold]bad[/bold] {escape(str(fault))}", soft_wrap=True)
    if faults:
        raise faults[0]
    console.print("every checksum matches")


class Figures(NamedTuple):
    """The figures of a shard for a table."""

    samples: int
    utterances: int
    shape: str
    classes: int
    counts: Array  # samples of each class; empty for tokens
    names: Sequence[str]  # of the classes, as far as they have any
    normalised: bool  # whether the shard has what `data.normalise = "corpus"` needs, or tokens, which need nothing


def table_of_parts(*more: str) -> Table:
    """An empty table with the columns part, shards, those of `row`, and `more`."""
    return Table("part", "shards", "samples", "utterances", "input", "classes", *more, box=None, pad_edge=False)


def figures(file: ShardFile) -> Figures:
    """The figures of an open shard."""
    utterances = 0 if file.offsets is None else len(file.offsets) - 1
    shape, names = " x ".join(map(str, file.inputs[1:])) or "token", class_names(file.attributes) or []
    normalised = file.kind == "tokens" or "mean" in file.attributes
    return Figures(file.inputs[0], utterances, shape, file.classes, np.bincount(file.targets), names, normalised)


def row(found: Sequence[Figures]) -> tuple[str, ...]:
    """The cells for the shards of a part: samples, utterances, shape of an input, classes."""
    utterances = sum(each.utterances for each in found)
    counts = f"{sum(each.samples for each in found):,}", f"{utterances:,}" if utterances else ""
    return (*counts, found[0].shape, str(found[0].classes))


def lines_of_classes(part: str, found: Sequence[Figures]) -> Iterator[str]:
    """Lines on how many samples each class of a part has, which classes have less than 1/4 of the median, and whether
    there is one class to train on."""
    counts = np.zeros(max(found[0].classes, *(len(each.counts) for each in found)), np.int64)
    for each in found:
        counts[: len(each.counts)] += each.counts
    if not counts.any():
        return
    names, median = [*found[0].names, *map(str, range(len(found[0].names), len(counts)))], np.median(counts[counts > 0])
    said = [f"{name}: {count:,}" for name, count in zip(names, counts, strict=True)]
    spread = f"{counts.min():,} to {counts.max():,} samples a class, median {np.median(counts):,.0f}"
    yield f"{part}, samples by class: {', '.join(said)}" if len(said) <= LISTED else f"{part}: {spread}"
    if few := [text for text, count in zip(said, counts, strict=True) if count < median / 4]:
        more = f" and {len(few) - LISTED} more" if len(few) > LISTED else ""
        of_those = "" if counts.all() else " that has any"
        less = f"less than a quarter of the median of {median:,.0f} samples a class{of_those}"
        yield f"warning: {part}: {less}: {', '.join(few[:LISTED])}{more}"
    if part == "train" and np.count_nonzero(counts) == 1:
        yield "warning: train: all samples are of one class; there is nothing to learn"


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
