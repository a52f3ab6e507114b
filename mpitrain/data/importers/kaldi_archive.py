"""Read Kaldi's archives (ark), which may be gzipped, and the scripts (scp) that point into them."""

import gzip
import io
import re
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from mpitrain.data.importers.kaldi_objects import begin, read_integers, read_matrix, skip
from mpitrain.errors import BadInput, naming
from mpitrain.flat import Array

OPEN = 16  # most archives that are kept open
KEY = 4096  # most bytes of a key
BEYOND = 3  # rows by which a range may end beyond its object, as in Kaldi: times of segments are rounded
DIGITS = 100  # most digits of an offset: int() raises an error for several thousand
#: What reading a damaged object raises.
FAULTS = (ValueError, OverflowError, EOFError, zlib.error, AssertionError, struct.error, MemoryError)

_POINTER = re.compile(r"(?P<path>.+?)(?::(?P<offset>\d+))?(?:\[(?P<cut>[\d:, ]*)\])?")


class Pointer(NamedTuple):
    """Where an object begins; `cut` is Kaldi's range of rows and columns, "0:99" or "0:99,3:5", ends included."""

    path: str
    offset: int = 0
    cut: str = ""

    def __str__(self) -> str:
        return f"{self.path}:{self.offset}"


def places(path: Path) -> dict[str, Pointer]:
    """Every key of a script (.scp) or an archive, in order, with its place. Raises BadInput naming a file that is
    damaged or has a key twice."""
    found: dict[str, Pointer] = {}
    pairs = script(path) if path.suffix == ".scp" else _scan(path)
    for key, place in pairs:
        if key in found:
            raise BadInput(f"{path}: {key} is there twice")
        found[key] = place
    if not found:
        raise BadInput(f"{path}: is empty")
    return found


def script(path: Path) -> Iterator[tuple[str, Pointer]]:
    """The lines of a script: key and place. Raises BadInput naming an invalid line, such as a command."""
    for number, words in table(path):
        key, pointer = words[0], " ".join(words[1:])
        match = _POINTER.fullmatch(pointer)
        if "|" in (pointer[:1], pointer[-1:]):
            raise BadInput(
                f"{path}, line {number}: {key} is a command, which is not run; copy the output to an ark first"
            )
        if match is None or len(match["offset"] or "") > DIGITS:
            raise BadInput(f"{path}, line {number}: expected a key and where it lies")
        yield key, Pointer(match["path"], int(match["offset"] or 0), match["cut"] or "")


def table(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The number, from 1, and the words of each line that is not blank. Raises BadInput naming what is not text."""
    said = f"{path}: not text in UTF-8"
    with naming(path), naming(said, UnicodeDecodeError), path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if "\0" in line:
                raise BadInput(f"{path}, line {number}: not text")
            if words := line.split():
                yield number, words


class Archives:
    """Reads objects and keeps archives open for the next ones. A context manager.

    All methods raise BadInput naming the place of an object that cannot be read.
    """

    def __init__(self) -> None:
        self._open: dict[str, BinaryIO] = {}

    def matrix(self, place: Pointer, dtype: type = np.float32) -> Array:
        """The matrix [rows, columns] at a place."""
        with _naming(place):
            matrix = _cut(read_matrix(self._at(place)), place.cut)
            with np.errstate(over="ignore"):  # infinite values are refused later
                return matrix.astype(dtype)

    def integers(self, place: Pointer) -> Array:
        """The integers at a place, int32 [n]."""
        with _naming(place):
            return _cut(read_integers(self._at(place)), place.cut)

    def length(self, place: Pointer) -> int:
        """The number of integers at a place, from the header of a binary vector."""
        with _naming(place):
            kind, _, length = begin(self._at(place))
        return length // 5 if kind == b"\4" and not place.cut else len(self.integers(place))

    def _at(self, place: Pointer) -> BinaryIO:
        file = self._open.pop(place.path, None)
        if file is None:
            file = _opened(place.path)
        self._open[place.path] = file  # move it to the end: the dictionary is ordered by last use
        if len(self._open) > OPEN:
            self._open.pop(next(iter(self._open))).close()
        file.seek(place.offset)
        return file

    def __enter__(self) -> "Archives":
        return self

    def __exit__(self, *exception: object) -> None:
        for file in self._open.values():
            file.close()


@contextmanager
def _naming(place: Pointer) -> Iterator[None]:
    with naming(f"{place}: not a Kaldi object", *FAULTS), naming(place):
        try:
            yield
        except FileNotFoundError as error:
            hint = "" if Path(place.path).is_absolute() else "; scripts count paths from where the command is run"
            raise BadInput(f"{place.path}: no such file{hint}") from error


def _opened(path: str) -> BinaryIO:
    if path.endswith(".gz"):
        return gzip.open(path, "rb")  # type: ignore[return-value]
    return open(path, "rb")


def _scan(path: Path) -> Iterator[tuple[str, Pointer]]:
    """Key and place of every object of an archive."""
    at = Pointer(str(path))
    with _naming(at), _opened(at.path) as file:
        while key := _key(file):
            at = Pointer(str(path), file.tell())
            with _naming(at):
                yield key, at
                skip(file)


def _key(file: BinaryIO) -> str:
    """The next key, or "" at the end of the file."""
    letters = bytearray()
    while (letter := file.read(1)) not in (b"", b" ", b"\t"):
        if letter == b"\n":  # an empty line between objects is skipped; after a key, it is an empty object
            if not letters:
                continue
            file.seek(-1, io.SEEK_CUR)
            break
        letters += letter
        if len(letters) > KEY:
            raise ValueError("a key without end")
    if not letters and not letter:
        return ""
    key = letters.decode()
    if not key or not letter or not key.isprintable():
        raise ValueError("expected a key and an object")
    return key


def _cut(array: Array, cut: str) -> Array:
    """The rows and columns that "first:last,first:last" selects, both ends included; rows may end beyond the object."""
    pieces = cut.replace(" ", "").split(",") if cut else []
    if len(pieces) > array.ndim:
        raise ValueError(f"[{cut}] of an object of shape {array.shape}")
    for axis, ends in enumerate(pieces):
        if not ends or ends == ":":
            continue
        first, last = (int(end) for end in ends.split(":"))
        size = array.shape[axis]
        beyond = BEYOND if axis == 0 else 0
        if not (first < size and first <= last < size + beyond):
            raise ValueError(f"[{cut}] of an object of shape {array.shape}")
        array = array.take(range(first, min(last + 1, size)), axis)
    return array
