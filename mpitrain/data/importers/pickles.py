"""Read pickled dictionaries of byte arrays, such as the published CIFAR batches, without running what they name.

A pickle calls the functions that it names. Here it may name only the functions in NumPy's own pickles, and they are
replaced by stand-ins that record their arguments, so that the type and size of an array are checked before NumPy runs.
"""

import io
import pickle
import pickletools
from math import prod
from pathlib import Path

import numpy as np

from mpitrain.errors import BadInput, naming
from mpitrain.flat import Array


class _Type:
    """Stands in for numpy.dtype and records its name."""

    def __init__(self, name: object = None, *arguments: object) -> None:
        self.name = name.decode("ascii") if isinstance(name, bytes) else name

    def __setstate__(self, state: object) -> None:
        """Ignore byte order and the like, which do not matter for bytes."""


class _Raw:
    """Stands in for numpy.ndarray and records its state (version, shape, type, whether in Fortran order, bytes)."""

    def __init__(self, *arguments: object) -> None:
        self.state: object = None

    def __setstate__(self, state: object) -> None:
        self.state = state


def _encode(text: str, encoding: str) -> bytes:
    """Stands in for _codecs.encode, with which protocol 2 writes bytes."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"bytes in {encoding}")
    return text.encode("latin1")


def _from_buffer(content: object, kind: object, shape: object, order: object) -> _Raw:
    """Stands in for NumPy's function of this name in protocol 5."""
    if not isinstance(content, bytes | bytearray):
        raise pickle.UnpicklingError("an array without bytes")
    raw = _Raw()
    raw.state = 1, shape, kind, order == "F", bytes(content)
    return raw


_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _Raw,
    ("numpy._core.multiarray", "_reconstruct"): _Raw,
    ("numpy.core.numeric", "_frombuffer"): _from_buffer,
    ("numpy._core.numeric", "_frombuffer"): _from_buffer,
    ("numpy", "ndarray"): _Raw,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _encode,
}


BITS = 128  # most bits of a number
MEMO = 1 << 10  # an index of the memo may exceed the number of entries by this much
_REFUSED = {"DUP", "FROZENSET", "PERSID", "BINPERSID", "EXT1", "EXT2", "EXT4", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX"}
#: The opcodes that create an object to which other objects may refer.
_TEXTS = ("STRING", "UNICODE", "BINSTRING", "BINUNICODE", "BINBYTES", "BYTEARRAY", "SHORT_BIN")
_SHARED = (*_TEXTS, "GLOBAL", "STACK_GLOBAL", "REDUCE")


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        """Return a stand-in, and nothing else."""
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no array needs")
        return _ALLOWED[module, name]


def read_pickle(content: bytes, path: Path) -> dict[str, object]:
    """The dictionary in a pickle, keys as text, byte arrays as uint8. Raises BadInput naming `path`.

    Strings of Python 2 are returned as bytes.
    """
    if not content:
        raise BadInput(f"{path}: is empty")
    with naming(f"{path}: not a pickle of arrays", Exception):  # damaged pickles raise many types of errors
        _scan(content)
        found = _Unpickler(io.BytesIO(content), encoding="bytes").load()
        if not isinstance(found, dict):
            raise pickle.UnpicklingError(f"it holds a {type(found).__name__}, not a dictionary")
        return {_name(key): _array(value) if isinstance(value, _Raw) else value for key, value in found.items()}


def _scan(content: bytes) -> None:
    """Refuse opcodes that no array needs and that make a small pickle take much memory or time.

    A memo is an array as long as its largest index. A tuple whose elements refer to the same tuples again and again is
    traversed once for every path to them, of which there may be exponentially many.
    """
    before, kept, fixed = "", 0, set[int]()
    for opcode, argument, _ in pickletools.genops(content):
        name = opcode.name
        if isinstance(argument, int) and argument.bit_length() > BITS:
            raise pickle.UnpicklingError(f"a number of {argument.bit_length():,} bits")
        if name in _REFUSED:
            raise pickle.UnpicklingError(f"{name}, which no array needs")
        if name == "MEMOIZE" or "PUT" in name:
            index = kept if name == "MEMOIZE" else int(argument or 0)
            if index > kept + MEMO:
                raise pickle.UnpicklingError(f"a memo of {index:,} entries")
            if not before.startswith(_SHARED):
                fixed.add(index)
            kept += 1
        elif "GET" in name and int(argument or 0) in fixed:
            raise pickle.UnpicklingError("a tuple twice, which no array needs")
        before = before if name == "FRAME" else name


def _name(key: object) -> str:
    if isinstance(key, bytes):
        return key.decode()
    if not isinstance(key, str):
        raise pickle.UnpicklingError(f"a key that is a {type(key).__name__}, not text")
    return key


def _array(raw: _Raw) -> Array:
    if not isinstance(raw.state, tuple) or len(raw.state) != 5 or not isinstance(raw.state[1], tuple):
        raise pickle.UnpicklingError("an array without a shape")
    _, sizes, kind, fortran, content = raw.state
    shape = tuple(int(size) for size in sizes)
    if not isinstance(kind, _Type) or kind.name not in ("u1", "|u1") or not isinstance(content, bytes):
        raise pickle.UnpicklingError("an array of other things than bytes")
    if min(shape, default=0) < 0 or prod(shape) != len(content):
        raise pickle.UnpicklingError(f"an array of {shape} with {len(content)} bytes")
    return np.frombuffer(content, np.uint8).reshape(shape, order="F" if fortran else "C")
