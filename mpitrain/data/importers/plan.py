"""The plan of an import, the options of all importers, the identity of a source, and how one process makes one shard.

Worker processes load this module; nothing in it depends on other processes or ranks.

A source is identified by digests of all bytes of its files. Names, sizes and times do not suffice: an older file of the
same size may replace a file, its time may be set back, and a copy of the same file has another time.
Reading everything once costs less than an import, which reads it too.
"""

import argparse
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import xxhash

from mpitrain.data.normalising import moments
from mpitrain.data.reader import ShardFile
from mpitrain.data.shards import NAMES, provisional_name, shard_name, write_shard
from mpitrain.data.validation import CLASSES, INPUTS, LEFT_OUT, Value
from mpitrain.errors import BadInput, naming, printable
from mpitrain.files import Record, Version, regular_status, version_of
from mpitrain.flat import Array, share
from mpitrain.start import Subparsers, option

SMALLEST, LARGEST = 1 << 20, 1 << 27  # bytes of inputs in a shard
PIECES = 32  # shards per part, unless they would become too small or too large
PORTION = 1 << 26  # bytes that a process digests at a time

Source = TypeVar("Source")  #: the source of a shard


@dataclass(frozen=True)
class CorpusPlan(Generic[Source]):
    """A corpus to be made: `chunks` lists, for each part, the source of each of its shards.

    `make` turns a chunk into the arrays of a shard of this `kind`, from the chunk's `files`. It runs in other
    processes, so both must be picklable, and raises BadInput naming the source. The bytes of all files, `attributes`
    and the reprs of `chunks` and `options` identify a corpus: `make` may depend on nothing else. The `attributes`
    come from `described`; mean and standard deviation of the training part are computed.
    `preparation` describes the features, see `shards`. `notes` are messages for the user. `make` may leave out broken
    files, which it then names under LEFT_OUT; without `skip_broken` they end the import, once all are known.
    """

    kind: str
    attributes: dict[str, Value]
    chunks: dict[str, list[Source]]
    files: Callable[[Source], Iterable[Path]]
    make: Callable[[Source], dict[str, Array]]
    options: object = None
    notes: tuple[str, ...] = ()
    preparation: Record = field(default_factory=dict)
    skip_broken: bool = False

    @staticmethod
    def described(source: str, classes: int | None, names: Iterable[str] = ()) -> dict[str, Value]:
        """The attributes of all shards: where they are from, and the number of classes and their names, if known."""
        every = {"source": printable(source), "classes": classes, NAMES: " ".join(names)}
        return {name: value for name, value in every.items() if value}

    def versions(self) -> dict[Path, Version]:
        """All files of the source, in order, with their versions. Raises BadInput naming one that cannot be read."""
        return versions(path for chunks in self.chunks.values() for chunk in chunks for path in self.files(chunk))

    def tasks(self, folder: Path, digests: list[str], found: Mapping[Path, Version]) -> list["Task[Source]"]:
        """One task per shard. `digests`: those of all files; `found`: the versions of the files."""
        attributes = sorted((name, repr(value)) for name, value in self.attributes.items())
        identity = xxhash.xxh3_64_hexdigest(repr((self.kind, attributes, self.options, self.chunks, digests)).encode())
        made = []
        for part, chunks in self.chunks.items():
            for number, chunk in enumerate(chunks):
                own = {**self.attributes, "recipe": f"{identity} {part} {number}"}
                files = {path: found[path] for path in self.files(chunk)}
                paths = folder / provisional_name(part, number), folder / shard_name(part, number, len(chunks))
                made.append(Task(self.make, self.kind, own, part, chunk, files, *paths))
        return made


@dataclass(frozen=True)
class Task(Generic[Source]):
    """One shard of a plan, which has its `provisional` path until all are complete.

    The attribute `recipe` distinguishes it from the shards of other imports, and from the other shards of this one.
    """

    make: Callable[[Source], dict[str, Array]]
    kind: str
    attributes: dict[str, Value]
    part: str
    chunk: Source
    files: dict[Path, Version]
    provisional: Path
    final: Path

    def done(self, path: Path) -> bool:
        """Whether `path` is an intact shard of this recipe. Its inputs are not read."""
        with suppress(BadInput):
            return self.owns(path)
        return False

    def owns(self, path: Path) -> bool:
        """Whether the shard `path` is of this recipe. Raises BadInput if it is damaged."""
        with ShardFile(path) as file:
            return bool(file.attributes.get("recipe") == self.attributes["recipe"])

    def run(self) -> None:
        """Write the provisional shard. Raises BadInput, also for a file that changed since the plan was made."""
        arrays = self.make(self.chunk)
        for path, version in self.files.items():
            if versions([path])[path] != version:
                raise BadInput(f"{path}: has changed while it was being imported; the same command starts over")
        own: dict[str, Value] = {name: arrays.pop(name) for name in (LEFT_OUT,) if name in arrays}
        if self.kind != "tokens":
            own |= moments(arrays[INPUTS[self.kind]]) if self.part == "train" else {}
            own["classes"] = int(arrays["targets"].max(initial=0)) + 1
        write_shard(self.provisional, self.kind, arrays, {**own, **self.attributes})


Planning = Callable[[argparse.Namespace], CorpusPlan]


def add_source(
    sources: Subparsers, name: str, what: str, source: str, planning: Planning, nargs: str | None = None, **least: int
) -> argparse.ArgumentParser:
    """Add `prepare NAME` with the arguments that all importers share: the source, the folder and the number of
    processes. `least`: the smallest values of other options."""
    parser = sources.add_parser(name, help=what)
    option(parser, "source SOURCE", source, Path, nargs=nargs)
    option(parser, "folder DIR", "the folder for the shards", Path)
    option(parser, "--jobs", "number of processes; default: the rank's share of the cores it may use", int)

    def checked(options: argparse.Namespace) -> CorpusPlan:
        require_least(options, jobs=1, **least)
        return planning(options)

    parser.set_defaults(run="mpitrain.data.importers.importing:run", planning=checked)
    return parser


def require_least(options: argparse.Namespace, **least: int) -> None:
    """Raise BadInput naming an option below its `least` value, or --classes above what any corpus may have."""
    for name, value in least.items():
        given = getattr(options, name)
        if given is not None and given < value:
            raise BadInput(f"--{name} {given}: at least {value}")
    if getattr(options, "classes", None) is not None and not 1 <= options.classes <= CLASSES:
        raise BadInput(f"--classes {options.classes}: at least 1, at most {CLASSES:,}")


def shard_slices(samples: int, bytes_each: int, smallest: int = SMALLEST) -> list[slice]:
    """The samples of each shard of a part: about as many each, in PIECES shards of `smallest` to LARGEST bytes."""
    size = min(max(samples * bytes_each // PIECES, smallest), LARGEST)
    shards = min(max(-(-samples * bytes_each // size), 1), max(samples, 1))
    return [share(samples, number, shards) for number in range(shards)]


def versions(paths: Iterable[Path]) -> dict[Path, Version]:
    """The version of each file. Raises BadInput naming one that is missing or no regular file."""
    found: dict[Path, Version] = {}
    for path in paths:
        if path not in found:
            with naming(path):
                found[path] = version_of(regular_status(path))
    return found


class Extent(NamedTuple):
    """`length` bytes of a file, from byte number `start` on."""

    path: Path
    start: int
    length: int


def portions(files: Mapping[Path, Version]) -> list[list[Extent]]:
    """All bytes of the files, in order, in portions of at most PORTION bytes."""
    made: list[list[Extent]] = [[]]
    held = 0
    for path, version in files.items():
        for start in range(0, max(version.size, 1), PORTION):
            length = min(version.size - start, PORTION)
            if held + length > PORTION:
                made.append([])
                held = 0
            made[-1].append(Extent(path, start, length))
            held += length
    return made


def read_at(path: Path | str, start: int, length: int) -> bytes:
    """At most `length` bytes of a file from byte number `start` on. Raises BadInput naming it."""
    with naming(f"{path}: cannot be read"), open(path, "rb") as file:
        file.seek(start)
        return file.read(length)


def digest_extents(portion: Iterable[Extent]) -> str:
    """xxh3 of what the extents hold and of their lengths. Raises BadInput naming a file."""
    hasher = xxhash.xxh3_64()
    for extent in portion:
        content = read_at(*extent)
        hasher.update(len(content).to_bytes(8, "little"))
        hasher.update(content)
    return hasher.hexdigest()
