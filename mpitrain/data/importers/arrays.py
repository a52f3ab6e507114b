"""`prepare arrays`: make a corpus from the arrays of an npz archive or the data sets of any HDF5 file."""

import argparse
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mpitrain.data.importers.array_files import FileArray, FileArrays, opened
from mpitrain.data.importers.plan import LARGEST, SMALLEST, CorpusPlan, add_source, shard_slices
from mpitrain.data.shards import require_part
from mpitrain.data.validation import CLASSES, UNUSABLE, usable
from mpitrain.errors import BadInput
from mpitrain.flat import Array
from mpitrain.start import Subparsers, option

PLACE = "{part}"  # in the name of a file or array: a placeholder for the name of the part


class Names(NamedTuple):
    """Names of the arrays. `inputs` are the images or features; the name of an array that does not exist is empty.

    `utterances` holds offsets [n+1], `lengths` the frames of each utterance [n]; without both, each frame stands alone.
    """

    kind: str
    inputs: str
    targets: str
    utterances: str
    lengths: str
    speakers: str
    channels_first: bool

    def of(self, part: str) -> "Names":
        """The names for one part."""
        texts: dict[str, Any] = {
            name: text.replace(PLACE, part) for name, text in self._asdict().items() if isinstance(text, str)
        }
        return self._replace(**texts)


class ArrayChunk(NamedTuple):
    """Samples `start` to `stop` of a file's arrays; for frames, utterances from number `first`, of these `lengths`."""

    path: str
    names: Names
    start: int
    stop: int
    first: int = 0
    lengths: tuple[int, ...] = ()


def add_parser(sources: Subparsers) -> None:
    """Add `prepare arrays`."""
    what, source = "arrays of an npz archive or an HDF5 file", "the file, or {part}.npz and the like"
    parser = add_source(sources, "arrays", what, source, _planned, classes=1)
    parser.description = "In SOURCE and in the names of arrays, {part} stands for each part's name."
    inputs = parser.add_mutually_exclusive_group(required=True)
    option(inputs, "--images NAME", "uint8 [n, h, w] or [n, h, w, channels]")
    option(inputs, "--features NAME", "numbers [frames, dims]")
    option(parser, "--targets NAME", "class of each sample; default: targets", default="targets")
    utterances = parser.add_mutually_exclusive_group()
    option(utterances, "--utterances NAME", "offsets at which utterances begin, and their end", default="")
    option(utterances, "--lengths NAME", "frames of each utterance", default="")
    option(parser, "--speakers NAME", "name or number of each utterance's speaker", default="")
    option(parser, "--parts", "the splits, such as train,dev,test; default: train", default="train")
    option(parser, "--classes", "number of classes; default: the largest target plus one", int)
    option(parser, "--channels-first", "images are [n, channels, h, w]")


def _planned(options: argparse.Namespace) -> CorpusPlan:
    """The plan; in the names of the source and of the arrays, {part} stands for each part. Raises BadInput naming the
    option, the file or an invalid part."""
    kind = "images" if options.images else "frames"
    if options.channels_first and kind == "frames":
        raise BadInput("--channels-first: features have no channels")
    said = [name for name in ("utterances", "lengths", "speakers") if getattr(options, name)]
    if said and kind == "images":
        raise BadInput(f"--{said[0]}: images have none")
    source, parts = str(options.source), options.parts.split(",")
    for part in parts:
        require_part(part, part)
    every = options.images or options.features, options.targets, options.utterances, options.lengths, options.speakers
    names = Names(kind, *every, options.channels_first)
    if len(parts) > 1 and (same := [name for name in every if name and PLACE not in source + name]):
        raise BadInput(f"--parts {options.parts}: neither SOURCE nor {same[0]} contains {PLACE}")
    notes = list[str]()
    chunks = {part: _chunks(Path(source.replace(PLACE, part)), names.of(part), notes) for part in parts}
    attributes = CorpusPlan.described(f"arrays of {options.source.name}", options.classes)
    return CorpusPlan(
        names.kind,
        attributes,
        chunks,
        lambda chunk: [Path(chunk.path)],
        partial(_shard, options.classes),
        notes=tuple(notes),
    )


def _chunks(path: Path, names: Names, notes: list[str]) -> list[ArrayChunk]:
    """The shards of a part. `notes` gets a line about images whose channels may come first."""
    with opened(path) as arrays:
        inputs, targets = (arrays.require(name) for name in (names.inputs, names.targets))
        _check(inputs, targets, names, path)
        notes += _doubts(inputs, names, path)
        each = int(np.prod(inputs.shape[1:])) * (1 if names.kind == "images" else 4)
        smallest = LARGEST if arrays.whole else SMALLEST  # few shards: each process reads whole arrays
        shards = shard_slices(len(inputs), each, smallest)
        if names.kind == "images":
            return [ArrayChunk(str(path), names, own.start, own.stop) for own in shards]
        offsets = _offsets(arrays, names, len(inputs), path)
        if names.speakers and arrays.require(names.speakers).shape != (len(offsets) - 1,):
            raise BadInput(
                f"{path}: {names.speakers} does not name the speaker of each of {len(offsets) - 1} utterances"
            )
    cuts = np.unique(np.searchsorted(offsets, [0, *(own.stop for own in shards)]))
    lengths = tuple(np.diff(offsets).tolist())
    return [
        ArrayChunk(str(path), names, int(offsets[a]), int(offsets[b]), int(a), lengths[a:b]) for a, b in pairwise(cuts)
    ]


def _check(inputs: FileArray, targets: FileArray, names: Names, path: Path) -> None:
    if names.kind == "images":
        fits = inputs.dtype == np.uint8 and len(inputs.shape) in (3, 4)
        wanted = "images are uint8 [n, h, w] or [n, h, w, channels]"
    else:
        fits = inputs.dtype.kind in "fiu" and len(inputs.shape) == 2
        wanted = "features are numbers [frames, dims]"
    if not fits:
        raise BadInput(f"{path}: {names.inputs} is {_described(inputs)}; {wanted}")
    if targets.dtype.kind not in "iu" or targets.shape[1:] not in ((), (1,)) or not targets.shape:
        raise BadInput(f"{path}: {names.targets} is {_described(targets)}; targets are whole numbers, one a sample")
    if len(targets) != len(inputs):
        raise BadInput(f"{path}: {len(targets):,} targets in {names.targets} for {len(inputs):,} samples")
    if not len(inputs):
        raise BadInput(f"{path}: {names.targets} is empty")
    if 0 in inputs.shape:
        raise BadInput(f"{path}: {names.inputs} is {_described(inputs)}: samples of no values")


def _doubts(inputs: FileArray, names: Names, path: Path) -> list[str]:
    """A line about images [n, 3, h, w], as PyTorch has them, which are taken for images of three rows."""
    if names.kind != "images" or names.channels_first or len(inputs.shape) < 4:
        return []
    rows, columns, channels = inputs.shape[1:]
    if rows not in (1, 3) or channels <= 4:
        return []
    taken = f"taken for images of {rows} x {columns} pixels with {channels} channels"
    return [f"{path}: {names.inputs} is {_described(inputs)}: {taken}; is that --channels-first?"]


def _described(array: FileArray) -> str:
    return f"{array.dtype} [{', '.join(map(str, array.shape))}]"


def _offsets(arrays: FileArrays, names: Names, frames: int, path: Path) -> Array:
    """Offsets at which utterances begin, int64 [n+1]."""
    name = names.utterances or names.lengths
    if not name:
        return np.arange(frames + 1)
    found = arrays.require(name)
    if found.dtype.kind not in "iu" or len(found.shape) != 1:
        raise BadInput(f"{path}: {name} is {_described(found)}; expected whole numbers, one an utterance")
    offsets = np.asarray(found[:]).astype(np.int64)
    if names.lengths:
        offsets = np.cumsum([0, *offsets])
    if len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != frames or (offsets[1:] <= offsets[:-1]).any():
        raise BadInput(f"{path}: {name} does not divide {frames:,} frames into utterances")
    return offsets


def _shard(classes: int | None, chunk: ArrayChunk) -> dict[str, Array]:
    path, names, rows = Path(chunk.path), chunk.names, slice(chunk.start, chunk.stop)
    with opened(path) as arrays:
        inputs, targets = (np.asarray(arrays.require(name)[rows]) for name in (names.inputs, names.targets))
        low, high, limit = int(targets.min()), int(targets.max()), classes or CLASSES
        if low < 0 or high >= limit:
            raise BadInput(f"{path}: {names.targets} holds {low if low < 0 else high}; classes are 0 to {limit - 1:,}")
        targets = targets.reshape(-1).astype(np.int32)
        if names.kind == "images":
            return {"images": _images(inputs, names.channels_first), "targets": targets}
        utterances = np.cumsum([0, *chunk.lengths])
        found = {"features": _features(inputs, chunk), "targets": targets, "utterances": utterances}
        if names.speakers:
            numbers = np.unique(arrays.require(names.speakers)[:], return_inverse=True)[1]
            found["speakers"] = numbers[chunk.first : chunk.first + len(chunk.lengths)].astype(np.int32)
        return found


def _features(inputs: Array, chunk: ArrayChunk) -> Array:
    with np.errstate(over="ignore"):
        features = inputs.astype(np.float32)
    good = usable(features).all(axis=1)
    if not good.all():
        frame = chunk.start + int(good.argmin())
        raise BadInput(f"{chunk.path}: {chunk.names.inputs}: frame {frame:,} has values {UNUSABLE}")
    return features


def _images(images: Array, channels_first: bool) -> Array:
    """Images [n, h, w], [n, h, w, channels] or, if `channels_first`, [n, channels, h, w] as [n, h, w, channels]."""
    if images.ndim == 3:
        return images[..., None]
    return np.ascontiguousarray(images.transpose(0, 2, 3, 1)) if channels_first else images
