"""What an importer wants made, and how one process makes one shard of it.

Nothing here knows of other processes or ranks: this module is what they load.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from mpitrain.data.moments import NAMES, moments
from mpitrain.data.reader import ShardFile
from mpitrain.data.shards import shard_name, with_attributes, write_shard
from mpitrain.data.validation import KINDS
from mpitrain.errors import BadInput
from mpitrain.files import write_whole
from mpitrain.flat import Array

SMALLEST, LARGEST = 1 << 20, 1 << 27  # bytes of inputs in a shard
PIECES = 32  # shards that a part is divided into, if they are neither too small nor too large so


@dataclass(frozen=True)
class Plan:
    """A corpus to be made: `chunks` says for each part what each of its shards is made of.

    `make` turns a chunk into the arrays of a shard of this `kind`. It runs in other processes, so both must pickle, and
    raises BadInput naming the source. A shard is told from that of another import by `attributes`, and by the reprs of
    its chunk and of `options`, which are whatever else `make` depends on. `attributes` holds `source`, and `classes`
    where they are known; mean and deviation of the training part, if missing, are worked out. `preparation`: what the
    shards are to say of their features, see `described`. `notes` are lines for the user.
    """

    kind: str
    attributes: dict[str, Any]
    chunks: dict[str, list[Any]]
    make: Callable[[Any], dict[str, Array]]
    options: Any = None
    notes: tuple[str, ...] = ()
    preparation: dict[str, Any] = field(default_factory=dict)

    def tasks(self, folder: Path) -> list["Task"]:
        """One for every shard."""
        return [
            Task(self.make, self.kind, self.attributes, self.options, folder, part, number, len(chunks), chunk)
            for part, chunks in self.chunks.items()
            for number, chunk in enumerate(chunks)
        ]


@dataclass(frozen=True)
class Task:
    """One shard of a plan."""

    make: Callable[[Any], dict[str, Array]]
    kind: str
    attributes: dict[str, Any]
    options: Any
    folder: Path
    part: str
    number: int
    count: int
    chunk: Any

    @property
    def provisional(self) -> Path:
        """Its name until all shards are there."""
        return self.folder / f".{self.part}-{self.number:05d}.h5"

    @property
    def final(self) -> Path:
        """Its name in the shard folder."""
        return self.folder / shard_name(self.part, self.number, self.count)

    @property
    def recipe(self) -> str:
        """Tells this shard from that of another import."""
        attributes = sorted((name, repr(value)) for name, value in self.attributes.items())
        described = self.kind, attributes, self.options, self.part, self.number, self.count, self.chunk
        return xxhash.xxh3_64_hexdigest(repr(described).encode())

    def done(self, path: Path) -> bool:
        """Whether a whole shard of this recipe lies there."""
        try:
            with ShardFile(path) as file:
                return bool(file.attributes.get("recipe") == self.recipe)
        except BadInput:
            return False

    def run(self) -> None:
        """Write the provisional shard. Raises BadInput."""
        arrays = self.make(self.chunk)
        own = moments(arrays[next(iter(KINDS[self.kind]))]) if self.part == "train" else {}
        classes = int(arrays["targets"].max(initial=0)) + 1
        write_shard(
            self.provisional, self.kind, arrays, {"classes": classes, **own, **self.attributes, "recipe": self.recipe}
        )

    def finish(self, common: dict[str, Any]) -> None:
        """Give the provisional shard the attributes that only the whole corpus has. Raises BadInput."""
        changes = {**dict.fromkeys(NAMES), **common}
        write_whole(self.provisional, with_attributes(self.provisional, changes))


def shard_lengths(samples: int, bytes_each: int, smallest: int = SMALLEST) -> list[int]:
    """How many samples to put into each shard of a part: about alike, PIECES shards of `smallest` to LARGEST bytes."""
    size = min(max(samples * bytes_each // PIECES, smallest), LARGEST)
    shards = min(max(-(-samples * bytes_each // size), 1), max(samples, 1))
    return [(number + 1) * samples // shards - number * samples // shards for number in range(shards)]
