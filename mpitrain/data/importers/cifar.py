"""CIFAR-10 and CIFAR-100 as A. Krizhevsky publishes them: https://www.cs.toronto.edu/~kriz/cifar.html.

The python archive holds pickled dictionaries of `data` uint8 [n, 3072] and labels, the binary archive records of labels
(one byte; CIFAR-100: coarse, then fine) and 3072 bytes: the red plane of 32 rows, then green and blue.
"""

import argparse
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mpitrain.data.importers.pickles import read_pickle
from mpitrain.data.importers.plan import CorpusPlan, add_source
from mpitrain.errors import BadInput, naming
from mpitrain.flat import Array
from mpitrain.start import Subparsers, option

SIDE, PLANES = 32, 3
PIXELS = PLANES * SIDE * SIDE
PIECE = 1 << 20  # bytes read at a time
LARGEST_FILE, LARGEST_ARCHIVE = 1 << 28, 1 << 30  # bytes, unpacked; the published files have 1.5e8 and 1.9e8


class LabelSet(NamedTuple):
    """A set of labels: its key in a pickle, its byte among a record's `record_bytes` of labels, where its names are."""

    source: str
    classes: int
    key: str
    byte: int
    record_bytes: int
    names_key: str
    names_files: tuple[str, str]  # in the python archive, in the binary one


LABELS = {
    "cifar10": LabelSet("CIFAR-10", 10, "labels", 0, 1, "label_names", ("batches.meta", "batches.meta.txt")),
    "cifar100": LabelSet("CIFAR-100", 100, "fine_labels", 1, 2, "fine_label_names", ("meta", "fine_label_names.txt")),
    "cifar100-coarse": LabelSet(
        "CIFAR-100, coarse", 20, "coarse_labels", 0, 2, "coarse_label_names", ("meta", "coarse_label_names.txt")
    ),
}
TRAIN = {"cifar10": tuple(f"data_batch_{number}" for number in range(1, 6)), "cifar100": ("train",)}
TEST = {"cifar10": "test_batch", "cifar100": "test"}


def add_parser(sources: Subparsers) -> None:
    """Add `prepare cifar10` and `prepare cifar100`."""
    for name in ("cifar10", "cifar100"):
        what = f"CIFAR-{name[5:]}: the python or the binary archive"
        files = "the tar.gz, or the folder into which it was unpacked"
        parser = add_source(sources, name, what, files, _planned)
        if name == "cifar100":
            option(parser, "--labels", "100 or 20; default: fine", choices=("fine", "coarse"))
        parser.set_defaults(name=name, labels="fine")


def _planned(options: argparse.Namespace) -> CorpusPlan:
    """The plan for an archive or the folder it was unpacked into, python or binary. Raises BadInput naming it."""
    path, base = options.source, options.name
    labels = LABELS[f"{base}-coarse" if options.labels == "coarse" else base]
    there = _listed(path)
    forms = {ending: sum(file + ending in there for file in (*TRAIN[base], TEST[base])) for ending in ("", ".bin")}
    binary = forms[".bin"] >= max(forms[""], 1)  # the form of which more files are there
    names_file, ending = labels.names_files[binary], ".bin" if binary else ""
    parts = {"train": [file + ending for file in TRAIN[base]], "test": [TEST[base] + ending]}
    for file in (*parts["train"], *parts["test"], names_file):
        if file not in there:
            raise BadInput(f"{path}: has no {file}, which is a part of {labels.source}")
    names = class_names(_read(path, there[names_file]), labels, path / names_file)
    chunks = {part: [there[file] for file in files] for part, files in parts.items()}
    attributes, make = CorpusPlan.described(labels.source, labels.classes, names), partial(_batch, path, labels)
    return CorpusPlan("images", attributes, chunks, lambda file: [path / file if path.is_dir() else path], make)


def _batch(path: Path, labels: LabelSet, member: str) -> dict[str, Array]:
    """The arrays of a shard, which is one file of the archive."""
    images, targets = parse(_read(path, member), labels, path / member)
    return {"images": images, "targets": targets}


def _listed(path: Path) -> dict[str, str]:
    """The paths of the files in a folder and its subfolders, or in a tar archive, by file name."""
    if path.is_dir():
        found = [file for pattern in ("*/*", "*") for file in sorted(path.glob(pattern)) if file.is_file()]
        return {file.name: str(file.relative_to(path)) for file in found}
    with _opened(path) as archive:
        return {Path(member.name).name: member.name for member in _members(archive) if member.isfile()}


def _members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The members. Raises TarError for one that is too large, since a compressed archive may claim any size, and at the
    end the decompressor's error if the archive does not match the checksum that follows the members."""
    total = 0
    for member in archive:
        total += member.size
        if not 0 <= member.size <= LARGEST_FILE or total > LARGEST_ARCHIVE:
            raise tarfile.TarError(f"{member.name} would take {member.size:,} bytes")
        yield member
    assert archive.fileobj is not None  # since it is open
    while piece := archive.fileobj.read(PIECE):
        total += len(piece)
        if total > LARGEST_ARCHIVE:
            raise tarfile.TarError(f"more than {LARGEST_ARCHIVE:,} bytes")


def _read(path: Path, member: str) -> bytes:
    """The content of a file in the folder or archive."""
    if path.is_dir():
        with naming(path / member):
            return (path / member).read_bytes()
    with _opened(path) as archive:
        found = [each for each in _members(archive) if each.isfile() and each.name == member]  # as found by _listed
        file = archive.extractfile(found[-1])
        assert file is not None  # since it is a regular file
        return file.read()


@contextmanager
def _opened(path: Path) -> Iterator[tarfile.TarFile]:
    """Open a tar archive, compressed or not. Raises BadInput naming it for any error in reading it."""
    # tarfile and the decompressors raise many types of errors for damaged files
    with naming(f"{path}: not a complete tar archive", Exception), tarfile.open(path) as archive:
        yield archive


def parse(content: bytes, labels: LabelSet, path: Path) -> tuple[Array, Array]:
    """images uint8 [n, 32, 32, 3] and targets int32 [n] of a batch: records in a .bin file, else pickled.

    Raises BadInput naming `path`, which is not read.
    """
    planes, numbers = (_recorded if path.suffix == ".bin" else _pickled)(content, labels, path)
    low, high = min(numbers, default=0), max(numbers, default=0)
    if low < 0 or high >= labels.classes:
        raise BadInput(f"{path}: labels from {low} to {high}, but there are {labels.classes} classes")
    images = planes.reshape(-1, PLANES, SIDE, SIDE).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), np.array(numbers, np.int32)


def _pickled(content: bytes, labels: LabelSet, path: Path) -> tuple[Array, list[int]]:
    batch = read_pickle(content, path)
    data, numbers = batch.get("data"), batch.get(labels.key)
    if not isinstance(data, np.ndarray) or data.ndim != 2 or data.shape[1] != PIXELS:
        raise BadInput(f"{path}: no data of n x {PIXELS} bytes")
    if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
        raise BadInput(f"{path}: no list of {labels.key}")
    if len(numbers) != len(data):
        raise BadInput(f"{path}: {len(data):,} images but {len(numbers):,} {labels.key}")
    return data, numbers


def _recorded(content: bytes, labels: LabelSet, path: Path) -> tuple[Array, list[int]]:
    record = labels.record_bytes + PIXELS
    if not content:
        raise BadInput(f"{path}: is empty")
    if len(content) % record:
        raise BadInput(f"{path}: {len(content):,} bytes are not whole records of {record:,}")
    records = np.frombuffer(content, np.uint8).reshape(-1, record)
    return records[:, labels.record_bytes :], records[:, labels.byte].tolist()


def class_names(content: bytes, labels: LabelSet, path: Path) -> list[str]:
    """The names of the classes: words in a .txt file, else pickled. Raises BadInput naming `path`, not read."""
    if path.suffix == ".txt":
        names = content.decode(errors="replace").split()
    else:
        found = read_pickle(content, path).get(labels.names_key)
        texts = [name for name in found if isinstance(name, bytes | str)] if isinstance(found, list) else []
        words = [(name.decode(errors="replace") if isinstance(name, bytes) else name).split() for name in texts]
        names = ["_".join(own) for own in words]
    if len(names) != labels.classes:
        raise BadInput(f"{path}: {len(names)} names of {labels.classes} classes")
    return names
