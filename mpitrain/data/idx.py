"""IDX files of unsigned bytes, as MNIST and Fashion-MNIST are published: Y. LeCun, http://yann.lecun.com/exdb/mnist.

Big-endian: two zero bytes, a type (8: unsigned byte), the number of axes, the size of each in four bytes, the data.
"""

import gzip
import struct
import zlib
from math import prod
from pathlib import Path

import numpy as np

from mpitrain.errors import BadInput
from mpitrain.flat import Array

GZIP = b"\x1f\x8b"
UNSIGNED_BYTE = 8


def read_idx(path: Path, axes: int) -> Array:
    """Read a uint8 array with `axes` axes, gzipped or not. Raises BadInput naming the file."""
    return parse_idx(read_bytes(path), axes, path)


def read_bytes(path: Path) -> bytes:
    """A file's content, unpacked if it is gzipped. Raises BadInput naming the file."""
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if content.startswith(GZIP) else content
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


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
