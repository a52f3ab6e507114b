"""`prepare images`: images in one folder per class, optionally below train/, val/ (or dev/) and test/."""

import argparse
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from math import isqrt
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mpitrain.data.importers.pictures import PIXELS, load_picture, suffixes
from mpitrain.data.importers.plan import CorpusPlan, add_source, shard_slices
from mpitrain.data.importers.walking import files_below, folders_in
from mpitrain.data.validation import LEFT_OUT
from mpitrain.errors import BadInput, printable, some
from mpitrain.flat import Array
from mpitrain.sampling.rng import stream
from mpitrain.start import Subparsers, option

PARTS = {"train": "train", "val": "dev", "valid": "dev", "validation": "dev", "dev": "dev", "test": "test"}
#: Other names of parts, which are not the names of classes either.
ALIKE = {"training", "testing", *PARTS}

NAMED = 5  # most files that a note names


class Look(NamedTuple):
    """How images are read: `size` of the square, or 0 for images that all have the same size and are not resized."""

    size: int = 0
    grey: bool = False


class PictureChunk(NamedTuple):
    """The image files of a shard and their classes."""

    paths: tuple[str, ...]
    targets: tuple[int, ...]


Classes = dict[str, list[Path]]  #: image files by class


def add_parser(sources: Subparsers) -> None:
    """Add `prepare images`."""
    what, source = "images in one folder per class", "CLASS/..., or train/CLASS/..., val/..., test/..."
    parser = add_source(sources, "images", what, source, _planned, size=0, seed=0)
    option(parser, "--size N", "resize the shorter side to N pixels and crop the central N x N", int, default=0)
    option(parser, "--grey", "one channel instead of three")
    option(parser, "--dev SHARE", "fraction of each class to hold out as dev; default: 0", float, default=0.0)
    option(parser, "--test SHARE", "the same for test; default: 0", float, default=0.0)
    option(parser, "--seed", "seed of the split and the order; default: 1", int, default=1)
    option(parser, "--skip-broken", "leave out files that cannot be read, and name them")


def _planned(options: argparse.Namespace) -> CorpusPlan:
    """The plan for a folder, in which the folder that is written may be. Raises BadInput naming an option or a path."""
    if options.size**2 > PIXELS:
        raise BadInput(f"--size {options.size}: at most {isqrt(PIXELS)}")
    folder, look = options.source, Look(options.size, options.grey)
    parts, left = _parts(folder, options.folder)
    names = sorted(parts["train"])
    for part, classes in parts.items():
        if unknown := sorted(set(classes) - set(names)):
            raise BadInput(f"{folder}: class {unknown[0]} of {part} is not among those of train")
    _hold_out(parts, names, {"dev": options.dev, "test": options.test}, options.seed)
    shape = _shape(folder, look, [path for name in names for path in parts["train"][name]])
    chunks = {
        part: list(_chunks(folder, classes, names, int(np.prod(shape)), options.seed if part == "train" else None))
        for part, classes in parts.items()
    }
    kept = [printable("_".join(name.split())) for name in names]
    notes = [f"class {name!r} is called {its}" for name, its in zip(names, kept, strict=True) if name != its]
    if len(set(kept)) < len(kept):
        raise BadInput(f"{folder}: two classes would have one name: {notes[0]}, where blanks are not allowed")
    if left:
        named = ", ".join(str(path.relative_to(folder)) for path in left[:NAMED])
        more = f" and {len(left) - NAMED:,} more" if len(left) > NAMED else ""
        notes.append(f"left out {some(len(left), 'file')} without the name of a picture (.png, .jpg, …): {named}{more}")
    attributes = CorpusPlan.described(f"pictures of {folder.resolve().name}", len(names), kept)
    make = partial(_shard, folder, look, shape)

    def files(chunk: PictureChunk) -> Iterator[Path]:
        """The images of a shard without links that lead nowhere, which `make` reports."""
        return (path for name in chunk.paths if (path := folder / name).exists())

    return CorpusPlan(
        "images", attributes, chunks, files, make, (look, shape), tuple(notes), skip_broken=options.skip_broken
    )


def _shape(folder: Path, look: Look, paths: list[Path]) -> tuple[int, ...]:
    """The shape of all images: that to which they are resized, or else that of the first one that can be read."""
    if look.size:
        return look.size, look.size, 1 if look.grey else 3
    for path in paths:
        with suppress(BadInput):
            return tuple(load_picture(path, *look).shape)
    raise BadInput(f"{folder}: none of its {len(paths):,} training pictures can be read")


def _parts(folder: Path, shards: Path) -> tuple[dict[str, Classes], list[Path]]:
    """Image files by part and class, and the other files."""
    if not folder.is_dir():
        raise BadInput(f"{folder}: no such folder")
    endings, left = suffixes(), list[Path]()
    parts: dict[str, Classes] = {}
    if not (folder / "train").is_dir():
        parts["train"], left = _classes(folder, endings, shards)
        if all(name.lower() in ALIKE for name in parts["train"]):
            folders = ", ".join(sorted(parts["train"]))
            raise BadInput(f"{folder}: has folders {folders}; parts are called train/, val/ (or dev/) and test/")
        return parts, left
    for path in folders_in(folder, shards):
        if path.name not in PARTS or PARTS[path.name] in parts:
            raise BadInput(f"{path}: beside train/ there may be one of val/ or dev/, and test/")
        parts[PARTS[path.name]], others = _classes(path, endings, shards)
        left += others
    return {part: parts[part] for part in ("train", "dev", "test") if part in parts}, left


def _classes(folder: Path, endings: set[str], shards: Path) -> tuple[Classes, list[Path]]:
    """The image files of each class, sorted by name, and the other files."""
    classes, left = dict[str, list[Path]](), list[Path]()
    for path in folder.iterdir():
        if path.is_file() and path.suffix.lower() in endings:
            raise BadInput(f"{path}: lies outside the folders of the classes")
    for path in folders_in(folder, shards):
        files = files_below(path, shards)
        classes[path.name] = [file for file in files if file.suffix.lower() in endings]
        left += [file for file in files if file.suffix.lower() not in endings]
        if not classes[path.name]:
            raise BadInput(f"{path}: holds no pictures")
    if not classes:
        raise BadInput(f"{folder}: holds no folders of classes")
    return classes, left


def _hold_out(parts: dict[str, Classes], names: list[str], shares: Mapping[str, float], seed: int) -> None:
    """Move these shares of every class from the training images to the held-out parts."""
    held = {part: share for part, share in shares.items() if share}
    for part, share in held.items():
        if not 0 <= share < 1 or sum(shares.values()) >= 1:
            raise BadInput(f"--{part} {share:g}: expected a share of the pictures below 1")
        if part in parts:
            raise BadInput(f"--{part} {share:g}: there is a folder of that part already")
    chosen: dict[str, Classes] = {part: {} for part in (*held, "train")}
    for number, name in enumerate(names):
        files, begin = parts["train"][name], 0
        order = stream(seed, "split", number).permutation(len(files))
        for part, share in (*held.items(), ("train", 1.0)):  # the rest is to train on
            end = begin + round(share * len(files))
            chosen[part][name] = [files[place] for place in sorted(order[begin:end])]
            begin = end
    for part, share in held.items():
        if not any(chosen[part].values()):
            raise BadInput(f"--{part} {share:g}: too few pictures for that share")
    if empty := next((name for name in names if not chosen["train"][name]), None):
        raise BadInput(f"--dev, --test: no training pictures are left of class {empty}")
    parts |= chosen


def _chunks(folder: Path, classes: Classes, names: list[str], size: int, seed: int | None) -> Iterator[PictureChunk]:
    """The shards of a part; with a `seed`, images are shuffled, because training reads neighbours together."""
    pairs = [
        (str(path.relative_to(folder)), number) for number, name in enumerate(names) for path in classes.get(name, [])
    ]
    if seed is not None:
        pairs = [pairs[place] for place in stream(seed, "order of pictures").permutation(len(pairs))]
    for own in shard_slices(len(pairs), size):
        paths, targets = zip(*pairs[own], strict=True)
        yield PictureChunk(paths, targets)


def _shard(folder: Path, look: Look, shape: tuple[int, ...], chunk: PictureChunk) -> dict[str, Array]:
    images, targets, broken = np.empty((len(chunk.paths), *shape), np.uint8), list[int](), list[str]()
    for name, target in zip(*chunk, strict=True):
        try:
            pixels = load_picture(folder / name, *look)
        except BadInput as error:
            broken.append(str(error))
            continue
        if pixels.shape != shape:
            its, wanted = (f"{width} x {height}" for height, width, _ in (pixels.shape, shape))
            raise BadInput(
                f"{folder / name}: {its} pixels, but the first picture has {wanted}; --size makes them alike"
            )
        images[len(targets)] = pixels
        targets.append(target)
    found = {"images": images[: len(targets)], "targets": np.array(targets, np.int32)}
    return {**found, LEFT_OUT: "\n".join(broken)} if broken else found
