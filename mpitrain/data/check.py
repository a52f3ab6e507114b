"""Verifying a shard folder: every byte of every shard is read."""

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mpitrain.data.reader import Shard, read_shard
from mpitrain.data.shards import folder_parts
from mpitrain.errors import BadInput


def check(folder: Path) -> None:
    """Print a table of the parts, and a line for every shard that is bad. Raises BadInput naming the first of them."""
    table = Table("part", "shards", "samples", "utterances", "input", "classes", "size", box=None, pad_edge=False)
    faults: list[BadInput] = []
    for part, paths in folder_parts(folder).items():
        shards = [shard for path in paths if (shard := _sound(path, faults))]
        if shards:
            size = sum(path.stat().st_size for path in paths if path.exists())
            table.add_row(part, f"{len(shards)} of {len(paths)}", *_figures(shards), f"{size / 1e6:,.2f} MB")
    console = Console()
    console.print(table)
    for fault in faults:
        console.print(f"[bold]bad[/bold] {escape(str(fault))}", soft_wrap=True, highlight=False)
    if faults:
        raise faults[0]
    console.print("every checksum matches")


def _sound(path: Path, faults: list[BadInput]) -> Shard | None:
    try:
        return read_shard(path)
    except BadInput as fault:
        faults.append(fault)
        return None


def _figures(shards: list[Shard]) -> tuple[str, ...]:
    """Samples, utterances, shape of one input, classes."""
    inputs = [next(iter(shard.arrays.values())) for shard in shards]
    utterances = sum(len(shard.arrays["utterances"]) - 1 for shard in shards if shard.kind == "frames")
    return (
        f"{sum(map(len, inputs)):,}",
        f"{utterances:,}" if utterances else "",
        " x ".join(map(str, inputs[0].shape[1:])) + f" {inputs[0].dtype}",
        str(shards[0].attributes["classes"]),
    )
