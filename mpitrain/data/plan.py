"""The plan of an import, and how one process makes one of its shards.

Worker processes load this module; nothing in it depends on other processes or ranks.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

import xxhash

from mpitrain.data.identity import require_unchanged, versions
from mpitrain.data.normalising import MOMENTS, moments
from mpitrain.data.reader import ShardFile
from mpitrain.data.shards import shard_name, with_attributes, write_shard
from mpitrain.data.validation import KINDS, Value
from mpitrain.errors import BadInput
from mpitrain.files import Record, Version, write_whole
from mpitrain.flat import Array

SMALLEST, LARGEST = 1 << 20, 1 << 27  # bytes of inputs in a shard
PIECES = 32  # shards per part, unless they would become too small or too large


Source = TypeVar("Source")  #: the source of a shard


@dataclass(frozen=True)
class CorpusPlan(Generic[Source]):
    """A corpus to be made: `chunks` lists, for each part, the source of each of its shards.

    `make` turns a chunk into the arrays of a shard of this `kind`, from the chunk's `files`. It runs in other
    processes, so both must be picklable, and raises BadInput naming the source. What all files hold, `attributes` and
    the reprs of `chunks` and `options`, which are all else that `make` depends on, distinguish a corpus from those of
    other imports. `attributes` holds `source`, and `classes` if known; mean and standard deviation of the training part
    are computed if they are missing. `preparation` describes the features, see `described`. `notes` are messages for
    the user.
    """

    kind: str
    attributes: dict[str, Value]
    chunks: dict[str, list[Source]]
    files: Callable[[Source], Iterable[Path]]
    make: Callable[[Source], dict[str, Array]]
    options: object = None
    notes: tuple[str, ...] = ()
    preparation: Record = field(default_factory=dict)

    def versions(self) -> dict[Path, Version]:
        """All files of the source, in order, with their versions. Raises BadInput naming one that cannot be read."""
        return versions(path for chunks in self.chunks.values() for chunk in chunks for path in self.files(chunk))

    def identity(self, digests: list[str]) -> str:
        """A string that distinguishes this corpus from those of other imports, given the digests of its files."""
        attributes = sorted((name, repr(value)) for name, value in self.attributes.items())
        described = self.kind, attributes, self.options, self.chunks, digests
        return xxhash.xxh3_64_hexdigest(repr(described).encode())

    def tasks(self, folder: Path, identity: str, found: Mapping[Path, Version]) -> list["Task[Source]"]:
        """One task per shard of the corpus with this identity. `found`: the versions of the files."""
        common = self.make, self.kind, self.attributes, identity, folder
        return [
            Task(*common, part, number, len(chunks), chunk, {path: found[path] for path in self.files(chunk)})
            for part, chunks in self.chunks.items()
            for number, chunk in enumerate(chunks)
        ]


@dataclass(frozen=True)
class Task(Generic[Source]):
    """One shard of a plan."""

    make: Callable[[Source], dict[str, Array]]
    kind: str
    attributes: dict[str, Value]
    identity: str
    folder: Path
    part: str
    number: int
    count: int
    chunk: Source
    files: dict[Path, Version]

    @property
    def provisional(self) -> Path:
        """The shard's path until all shards are written."""
        return self.folder / f".{self.part}-{self.number:05d}.h5"

    @property
    def final(self) -> Path:
        """The shard's final path."""
        return self.folder / shard_name(self.part, self.number, self.count)

    @property
    def recipe(self) -> str:
        """A string that distinguishes this shard from those of other imports, and from the others of this one."""
        return f"{self.identity} {self.part} {self.number}"

    def done(self, path: Path) -> bool:
        """Whether `path` is an intact shard of this recipe."""
        try:
            with ShardFile(path) as file:
                return bool(file.attributes.get("recipe") == self.recipe)
        except BadInput:
            return False

    def run(self) -> None:
        """Write the provisional shard. Raises BadInput, also for a file that changed since the plan was made."""
        arrays = self.make(self.chunk)
        require_unchanged(self.files)
        own = moments(arrays[next(iter(KINDS[self.kind]))]) if self.part == "train" else {}
        classes = int(arrays["targets"].max(initial=0)) + 1
        write_shard(
            self.provisional, self.kind, arrays, {"classes": classes, **own, **self.attributes, "recipe": self.recipe}
        )

    def finish(self, common: dict[str, Value]) -> None:
        """Add the attributes that depend on the whole corpus to the provisional shard. Raises BadInput."""
        changes: dict[str, Value | None] = {**dict.fromkeys(MOMENTS), **common}
        write_whole(self.provisional, with_attributes(self.provisional, changes))


def shard_lengths(samples: int, bytes_each: int, smallest: int = SMALLEST) -> list[int]:
    """The number of samples in each shard of a part: about equal, in PIECES shards of `smallest` to LARGEST bytes."""
    size = min(max(samples * bytes_each // PIECES, smallest), LARGEST)
    shards = min(max(-(-samples * bytes_each // size), 1), max(samples, 1))
    return [(number + 1) * samples // shards - number * samples // shards for number in range(shards)]
