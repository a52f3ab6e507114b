"""Verify a shard folder: every byte of every shard is read."""

from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mpitrain.data.reader import read_shard
from mpitrain.data.shards import folder_parts
from mpitrain.errors import BadInput


def check(folder: Path) -> None:
    """Print a table of the parts, and a line for every bad shard. Raises BadInput naming the first of them."""
    table = Table("part", "shards", "samples", "utterances", "input", "classes", "size", box=None, pad_edge=False)
    faults: list[BadInput] = []
    for part, paths in folder_parts(folder).items():
        found = [figures for path in paths if (figures := _figures(path, faults))]
        if found:
            size = sum(path.stat().st_size for path in paths if path.exists())
            table.add_row(part, f"{len(found)} of {len(paths)}", *_row(found), f"{size / 1e6:,.2f} MB")
    console = Console()
    console.print(table)
    for fault in faults:
        console.print(f"[bold]bad[/bold] {escape(str(fault))}", soft_wrap=True, highlight=False)
    if faults:
        raise faults[0]
    console.print("every checksum matches")


class Figures(NamedTuple):
    """The figures of a shard for the table; the shard itself is not kept in memory."""

    samples: int
    utterances: int
    shape: str
    classes: int


def _figures(path: Path, faults: list[BadInput]) -> Figures | None:
    try:
        shard = read_shard(path)
    except BadInput as fault:
        faults.append(fault)
        return None
    inputs = next(iter(shard.arrays.values()))
    utterances = len(shard.arrays["utterances"]) - 1 if shard.kind == "frames" else 0
    shape = " x ".join(map(str, inputs.shape[1:])) + f" {inputs.dtype}"
    return Figures(len(inputs), utterances, shape, shard.attributes["classes"])


def _row(found: list[Figures]) -> tuple[str, ...]:
    """Samples, utterances, shape of one input, classes."""
    utterances = sum(each.utterances for each in found)
    counts = f"{sum(each.samples for each in found):,}", f"{utterances:,}" if utterances else ""
    return (*counts, found[0].shape, str(found[0].classes))
