"""The shard format: one HDF5 file of samples, which is written completely or not at all.

A shard of kind "frames" holds `features` float32 [frames, dims], `targets` int32 [frames] and `utterances` int64 [n+1],
the offsets where utterances begin; of kind "images", `images` uint8 [n, h, w, c] and `targets` int32 [n]; of kind
"tokens", `tokens` uint16 or uint32 [tokens] and `documents` int64 [n+1], the offsets where documents begin. Frames may
have `speakers` int32 [n], a number for each utterance's speaker, and `keys` [n], each utterance's name in UTF-8; tokens
may have `bytes` int64 [n], the size of each document's text. Attributes: `format`, `kind`, `classes`, `source`, and if
known `mean` and `standard_deviation` of each feature or channel.

Every data set has fletcher32, HDF5's metadata have checksums (library version 1.10 on), every array has an xxh3 of its
content (`xxh3_NAME`), and `xxh3` covers the attributes, so that every flipped bit is detected. Shards of other tools
may omit `format` and the xxh3 attributes, but not fletcher32.

Two more attributes describe classes and features: `class_names` holds the names in the order of the classes, separated
by blanks. `preparation` is a JSON object that distinguishes features of one preparation from those of another, such as
{"bins": 23, "cmvn": "none"}.
"""

import io
import json
import os
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import h5py
import numpy as np
import xxhash

from mpitrain.data.validation import INPUTS, KINDS, Attributes, Value, validate, validate_inputs
from mpitrain.errors import BadInput, naming
from mpitrain.files import Record, sync, write_whole, writing
from mpitrain.files.hdf5 import attribute
from mpitrain.flat import Array

FORMAT = 1
CHUNK = 1 << 17  # bytes: large enough for speed, small enough that a lone window does not read much
NAMES, PREPARATION = "class_names", "preparation"
ROOM = 1 << 20  # most bytes by which a file grows when attributes are set
PAYS = 0.8  # compress only to at most this fraction of the size, since gzip is slower to read

DIGITS = "[0-9]" * 5
_PART = re.compile(r"train|dev|test(?:-[\w-]+?)?")
_NAME = re.compile(rf"(?P<part>{_PART.pattern})-(?P<number>\d{{5}})-of-(?P<count>\d{{5}})\.h5")


def shard_name(part: str, number: int, count: int) -> str:
    """The file name of shard `number` (from 0) of `count`. Raises BadInput for an invalid name of a part."""
    require_part(part, part)
    return f"{part}-{number:05d}-of-{count:05d}.h5"


def require_part(part: object, what: str) -> None:
    """Raise BadInput, beginning with `what`, for an invalid name of a part."""
    if not isinstance(part, str) or not _PART.fullmatch(part):
        raise BadInput(f"{what}: a part is called train, dev, test or test-NAME")


def part_order(part: str) -> tuple[int, str]:
    """The key by which parts are sorted: train, dev, test, test-NAME."""
    return ("train", "dev", "test").index(part.split("-")[0]), part


def provisional_name(part: str, number: int) -> str:
    """The file name of a shard until all shards of the part are complete."""
    return f".{part}-{number:05d}.h5"


def publish(folder: Path, counts: Mapping[str, int], part: str = "*") -> None:
    """Give the shards of complete parts their final names; `counts`: their number in each part.

    Provisional shards that a script left of `part`, by default of any, are deleted. Raises BadInput naming the folder.
    """
    with writing(folder):
        for each, count in counts.items():
            for number in range(count):
                if not (final := folder / shard_name(each, number, count)).exists():
                    (folder / provisional_name(each, number)).rename(final)
        for pattern in (f".{part}-{DIGITS}.h5", f".writing-*-.{part}-{DIGITS}.h5"):
            for left in folder.glob(pattern):
                left.unlink()


def folder_parts(folder: Path) -> dict[str, list[Path]]:
    """The shards that every part of a folder should have, in order: train, dev, test, test-NAME.

    Raises BadInput naming a folder that has no shards, or several sets of shards of one part.
    """
    counts: dict[str, set[int]] = {}
    with naming(folder):
        try:
            names = os.listdir(folder)
        except (FileNotFoundError, NotADirectoryError):
            raise BadInput(f"{folder}: no such folder; `mpitrain prepare` makes such folders") from None
    for name in names:
        if match := _NAME.fullmatch(name):
            counts.setdefault(match["part"], set()).add(int(match["count"]))
    if not counts:
        raise BadInput(f"{folder}: holds no shards such as {shard_name('train', 0, 8)}")
    order = sorted(counts, key=part_order)
    for part in order:
        if len(counts[part]) > 1:
            sets = " and of ".join(map(str, sorted(counts[part])))
            raise BadInput(f"{folder}: {part} has shards of several sets: of {sets}")
    return {part: [folder / shard_name(part, n, *counts[part]) for n in range(*counts[part])] for part in order}


def require_own(folder: Path, is_own: Callable[[Path], bool]) -> None:
    """Raise BadInput naming a shard in a folder that is not one of the corpus to be written there."""
    for path in folder.glob("[!.]*.h5"):
        if not is_own(path):
            raise BadInput(
                f"{folder}: already holds shards of another corpus, of another split or of files that have changed "
                f"since, such as {path.name}; name another folder, or delete this one"
            )


def part_shards(folder: Path, part: str) -> list[Path]:
    """The shards that a part should have, in order. Raises BadInput naming the folder."""
    found = folder_parts(folder)
    if part not in found:
        raise BadInput(f"{folder}: has no part {part}, only {', '.join(found)}")
    return found[part]


def write_shard(path: Path, kind: str, arrays: Mapping[str, Array], attributes: Attributes) -> None:
    """Write a shard under a temporary name, then rename it. Arrays are gzipped where that pays.

    `attributes` holds at least `classes`; values are strings, numbers and arrays of numbers.
    Raises BadInput naming the file if it cannot be written, and for arrays that do not make a valid shard.
    """
    described = {**attributes, "format": FORMAT, "kind": kind}
    validate(path, kind, arrays, described)
    validate_inputs(path, kind, arrays[INPUTS[kind]], int(np.asarray(attributes["classes"])))
    write_whole(path, _image(kind, arrays, described))


def _image(kind: str, arrays: Mapping[str, Array], attributes: dict[str, Value]) -> bytes:
    """The file's bytes. They are made in memory, because HDF5 itself does not handle a full disk properly."""
    buffer = io.BytesIO()
    with h5py.File(buffer, "w", libver=("v110", "v110")) as file:
        for name, (dtype, _) in KINDS[kind].items():
            if name not in arrays:
                continue  # an optional array: the others have been validated
            array = np.ascontiguousarray(arrays[name], None if " or " in dtype else dtype)
            _write_array(file, name, array)
            attributes[f"xxh3_{name}"] = digest(array)
        attributes["xxh3"] = attributes_digest(attributes)
        for name, value in attributes.items():
            _write_attribute(file, name, value)
    return buffer.getvalue()


def _write_array(file: h5py.File, name: str, array: Array) -> None:
    row = max(array.nbytes // max(len(array), 1), 1)
    rows = min(max(CHUNK // row, 1), max(len(array), 1))
    first = array[:rows].tobytes()
    pays = len(zlib.compress(first, 4)) <= PAYS * len(first)
    filters = {"compression": "gzip", "compression_opts": 4, "shuffle": array.itemsize > 1} if pays else {}
    most = None if len(array) else (None, *array.shape[1:])  # a fixed length of 0 may not have chunks
    chunks = (rows, *array.shape[1:])
    file.create_dataset(name, data=array, chunks=chunks, maxshape=most, fletcher32=True, **filters)


def _write_attribute(file: h5py.File, name: str, value: Value) -> None:
    if isinstance(value, str):  # of fixed length: strings of variable length are in a heap without checksum
        encoded = value.encode()
        file.attrs.create(name, np.bytes_(encoded), dtype=h5py.string_dtype("utf-8", max(len(encoded), 1)))
    else:
        file.attrs[name] = value


def set_attributes(path: Path, changes: Mapping[str, Value | None]) -> None:
    """Set these attributes of a shard, or remove those whose value is None; its arrays are not written again.

    A crash leaves a shard that its checksums tell from an intact one. Raises BadInput naming the file.
    """
    with naming(f"{path}: cannot be written", OSError, RuntimeError, ValueError):
        with path.open("r+b") as file:  # HDF5 does not handle a full disk properly, and cuts off what it does not need
            os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, ROOM)
        with h5py.File(path, "r+", libver=("v110", "v110")) as file:
            for name, value in changes.items():
                if name in file.attrs:
                    del file.attrs[name]
                if value is not None:
                    _write_attribute(file, name, value)
            there = {name: attribute(file, name) for name in file.attrs}
            _write_attribute(file, "xxh3", attributes_digest(there))
        sync(path)


def utterance_arrays(
    features: Sequence[Array], targets: Sequence[Array], speakers: Sequence[int] = (), keys: Sequence[str] = ()
) -> dict[str, Array]:
    """The arrays of a shard of frames from the features [frames, dims] and targets [frames] of its utterances."""
    offsets = np.cumsum([0, *map(len, features)], dtype=np.int64)
    arrays = {"features": np.concatenate(features), "targets": np.concatenate(targets), "utterances": offsets}
    if speakers:
        arrays["speakers"] = np.array(speakers, np.int32)
    if keys:
        arrays["keys"] = np.char.encode(keys, "utf-8")
    return arrays


def document_arrays(documents: Sequence[Array], nbytes: Sequence[int] = ()) -> dict[str, Array]:
    """The arrays of a shard of tokens from the tokens of its documents and, if known, the bytes of their text."""
    arrays = {"tokens": np.concatenate(documents), "documents": np.cumsum([0, *map(len, documents)], dtype=np.int64)}
    return arrays | ({"bytes": np.array(nbytes, np.int64)} if len(nbytes) else {})


def digest(array: Array) -> str:
    """xxh3 of an array's content and shape."""
    hasher = xxhash.xxh3_64(f"{array.dtype.str}{array.shape}".encode())
    hasher.update(array.reshape(-1).view(np.uint8) if array.size else b"")
    return hasher.hexdigest()


def attributes_digest(attributes: Attributes) -> str:
    """xxh3 of all attributes except itself."""
    plain = {name: np.asarray(value).tolist() for name, value in attributes.items() if name != "xxh3"}
    return xxhash.xxh3_64_hexdigest(json.dumps(plain, sort_keys=True).encode())


def class_names(attributes: Attributes) -> list[str] | None:
    """The names of the classes from 0 on, possibly of the first ones only; None if there are none or too many."""
    found, names = attributes.get(NAMES), list[str]()
    if isinstance(found, np.ndarray):
        names = [name.decode(errors="replace") if isinstance(name, bytes) else str(name) for name in found.reshape(-1)]
    elif isinstance(found, str):
        names = found.split()
    return names if 0 < len(names) <= int(attributes["classes"]) else None


def preparation(attributes: Attributes) -> Record:
    """How the features were prepared, as far as the shard describes it."""
    with suppress(ValueError, RecursionError):  # written by another tool
        if isinstance(how := json.loads(str(attributes.get(PREPARATION))), dict):
            return how
    return {}
