"""Parse one object of a Kaldi archive: its length and its numbers.

A binary object begins with "\\0B" and its type: FM, DM (float, double), CM, CM2, CM3 (compressed; Kaldi's
compressed-matrix.h), or, for integers, the byte 4. In text, a matrix is in brackets with one row per line, and integers
are on one line. kaldiio decodes the binary matrices. Invalid objects raise ValueError or the errors of gzip.
"""

import gzip
import io
import os
import struct
from typing import BinaryIO

import numpy as np

from mpitrain.flat import Array

DEFLATED = 1032  # gzip expands one byte to at most this many
SIZES = {b"FM": 4, b"DM": 8, b"CM": 1, b"CM2": 2, b"CM3": 1}  # bytes per value
INTEGER = np.dtype([("size", "u1"), ("value", "<i4")])


def read_matrix(file: BinaryIO) -> Array:
    """Read the matrix [rows, columns] that begins at the file's position."""
    kind, head, length = begin(file)
    if not kind:
        return _text_matrix(file)
    if kind not in SIZES:
        raise ValueError("integers, not a matrix")
    import kaldiio

    return next(kaldiio.load_ark(io.BytesIO(b"- " + head + _whole(file, length))))[1]


def read_integers(file: BinaryIO) -> Array:
    """Read the integers, int32 [n], that begin at the file's position."""
    kind, _, length = begin(file)
    if not kind:
        return np.array([int(word) for word in file.readline().strip(b" []\r\n").split()], np.int32)
    if kind in SIZES:
        raise ValueError(f"a matrix ({kind.decode()}), not integers")
    pairs = np.frombuffer(_whole(file, length), INTEGER)
    if (pairs["size"] != 4).any():
        raise ValueError("not integers of 4 bytes")
    return pairs["value"].astype(np.int32)


def skip(file: BinaryIO) -> None:
    """Skip the object that begins at the file's position."""
    kind, _, length = begin(file)
    if kind:
        file.seek(length, io.SEEK_CUR)
    else:
        _text(file)


def begin(file: BinaryIO) -> tuple[bytes, bytes, int]:
    """Read a header: the type, the header's bytes and the number of bytes that follow. Text has the type b"" and is not
    read."""
    start = file.tell()
    head = file.read(3)
    if head[:2] != b"\0B":
        file.seek(start)
        if not head:
            raise ValueError("the file ends here")
        if not head.isascii() or b"\0" in head:
            raise ValueError("neither binary nor text")
        return b"", b"", 0
    if head[2:] == b"\4":
        (count,) = struct.unpack("<i", _whole(file, 4))
        return b"\4", head, _room(file, 5 * count)
    while not head.endswith(b" "):
        head += _whole(file, 1)
        if len(head) > 6:
            raise ValueError(f"unknown type {head[2:]!r}")
    kind = head[2:-1]
    if kind not in SIZES:
        raise ValueError(f"type {kind.decode(errors='replace')}, neither a matrix nor integers")
    # compressed: float32 minimum and range, then rows and columns; otherwise rows and columns, each after its size, 4
    form = "<8xii" if kind.startswith(b"C") else "<xixi"
    body = _whole(file, struct.calcsize(form))
    rows, columns = struct.unpack(form, body)
    if min(rows, columns) < 0:
        raise ValueError(f"{rows} rows and {columns} columns")
    quartiles = 8 * columns if kind == b"CM" else 0
    return kind, head + body, _room(file, rows * columns * SIZES[kind] + quartiles)


def _room(file: BinaryIO, length: int) -> int:
    """The length, after checking that the file can be that long."""
    size = os.fstat(file.fileno()).st_size
    most = size * DEFLATED if isinstance(file, gzip.GzipFile) else size - file.tell()
    if not 0 <= length <= most:
        raise ValueError(f"truncated: {length:,} bytes should follow, there are {most:,}")
    return length


def _whole(file: BinaryIO, length: int) -> bytes:
    content = file.read(length)
    if len(content) < length:
        raise ValueError(f"truncated: {length:,} bytes should follow, there are {len(content):,}")
    return content


def _text_matrix(file: BinaryIO) -> Array:
    """Parse rows in brackets. kaldiio would read a matrix whose first number has no decimal point as integers."""
    before, opened, text = _text(file).partition(b"[")
    if before.strip() or not opened:
        raise ValueError("a matrix in text begins with [")
    lines = text.partition(b"]")[0].split(b"\n")
    rows = [np.array(words, np.float64) for line in lines if (words := line.split())]
    if len({len(row) for row in rows}) > 1:
        raise ValueError("rows of several lengths")
    return np.array(rows, np.float64).reshape(len(rows), -1)


def _text(file: BinaryIO) -> bytes:
    """The line at the file's position and, if it opens a bracket, those up to the one that closes it."""
    lines = [file.readline()]
    while b"[" in lines[0] and b"]" not in lines[-1]:
        lines.append(file.readline())
        if not lines[-1]:
            raise ValueError("a bracket that nothing closes")
    return b"".join(lines)
