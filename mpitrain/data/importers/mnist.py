"""MNIST and data sets in its format, such as Fashion-MNIST: a folder of four IDX files, gzipped or not.

IDX files (Y. LeCun, http://yann.lecun.com/exdb/mnist) are big-endian: two zero bytes, a type (8: unsigned byte), the
number of axes, the size of each in four bytes, the data.
"""

import gzip
import struct
import zlib
from functools import partial
from math import prod
from pathlib import Path

import numpy as np

from mpitrain.data.importers.plan import CorpusPlan, add_source
from mpitrain.errors import BadInput, naming
from mpitrain.flat import Array
from mpitrain.start import Subparsers, option

GZIP = b"\x1f\x8b"
UNSIGNED_BYTE = 8
NAMES = {"train": "train", "test": "t10k"}


def add_parser(sources: Subparsers) -> None:
    """Add `prepare mnist`."""
    what = "MNIST, Fashion-MNIST and others in their format: IDX files"
    files = "the folder with the four files, gzipped or not"
    parser = add_source(sources, "mnist", what, files, lambda options: plan(options.source, options.classes), classes=1)
    option(parser, "--classes", "number of classes; default: 10", int, default=10)


def plan(folder: Path, classes: int = 10) -> CorpusPlan:
    """The plan for a folder with `train-images-idx3-ubyte` and three others. Raises BadInput naming a missing one."""
    if not folder.is_dir():
        raise BadInput(f"{folder}: no such folder")
    found = partial(_found, folder)
    chunks = {part: [(found(name, "images", 3), found(name, "labels", 1))] for part, name in NAMES.items()}
    attributes = CorpusPlan.described(f"IDX files of {folder.resolve().name}", classes)
    return CorpusPlan("images", attributes, chunks, tuple, partial(_part, classes))


def _found(folder: Path, name: str, what: str, axes: int) -> Path:
    """The path of the file under its published name, or with a dot in it, as some programs unpack it."""
    published = f"{name}-{what}-idx{axes}-ubyte"
    for form in (published, published.replace("-idx", ".idx")):
        for path in (folder / form, folder / f"{form}.gz"):
            if path.is_file():
                return path
    raise BadInput(f"{folder}: has neither {published} nor {published}.gz")


def _part(classes: int, paths: tuple[Path, Path]) -> dict[str, Array]:
    """The arrays of a part, which is a single shard."""
    images, labels = read_idx(paths[0], 3), read_idx(paths[1], 1)
    if len(images) != len(labels):
        raise BadInput(f"{paths[1]}: {len(labels):,} labels for the {len(images):,} images of {paths[0].name}")
    if not images.size:
        raise BadInput(f"{paths[0]}: no images")
    if labels.max() >= classes:
        raise BadInput(f"{paths[1]}: a label {labels.max()}, but there are {classes} classes")
    return {"images": images[..., None], "targets": labels.astype(np.int32)}


def read_idx(path: Path, axes: int) -> Array:
    """Read a uint8 array with `axes` axes, gzipped or not. Raises BadInput naming the file."""
    with naming(f"{path}: cannot be read", OSError, EOFError, zlib.error):
        content = path.read_bytes()
        content = gzip.decompress(content) if content.startswith(GZIP) else content
    return parse_idx(content, axes, path)


def parse_idx(content: bytes, axes: int, path: Path) -> Array:
    """The array in an IDX file's content. Raises BadInput naming `path`, which is not read."""
    if not content:
        raise BadInput(f"{path}: is empty")
    header = 4 + 4 * axes
    wanted = bytes([0, 0, UNSIGNED_BYTE, axes])
    if content[:4] != wanted[: len(content)]:
        raise BadInput(f"{path}: begins with {content[:4].hex(' ')}, an IDX file of {axes} axes with {wanted.hex(' ')}")
    if len(content) < header:
        raise BadInput(f"{path}: ends within its header, after {len(content)} bytes")
    shape = struct.unpack(f">{axes}I", content[4:header])
    if len(content) - header != prod(shape):
        size = " x ".join(map(str, shape))
        raise BadInput(f"{path}: {len(content) - header:,} bytes of data, but {size} make {prod(shape):,}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)
