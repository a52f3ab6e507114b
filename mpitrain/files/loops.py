"""Compiled loops: Numba compiles a loop for the types of its arguments once, and a file keeps the machine code.

From then on a process loads that file with llvmlite alone. To import Numba, and to let it load loops from its own
cache, takes a rank longer than all else that it loads.
"""

import ctypes
import json
import os
import struct
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, update_wrapper
from itertools import count
from pathlib import Path
from types import FunctionType
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import numpy as np

from mpitrain.errors import BadInput
from mpitrain.files import write_whole
from mpitrain.start import loops_folder

Entry = Callable[[Sequence[Any]], Any]
LINKED = count()  # numbers of the libraries that this process has linked
C_ORDER, F_ORDER, ALIGNED_WRITEABLE = 0x1, 0x2, 0x500  # of an array's flags


class CompiledLoop:
    """A function of arrays, numbers and tuples of numbers that is compiled, for their types, when it is first called.
    It runs without Python's lock, does not check indices, and may neither allocate nor reshape."""

    def __init__(self, function: Any, **options: Any) -> None:
        update_wrapper(self, function)
        self._function, self._options = function, options
        self._entries: dict[tuple[object, ...], Entry] = {}

    def __call__(self, *arguments: Any) -> Any:
        kinds: list[object] = []
        words: list[Any] = []
        for each in arguments:
            _flatten(each, kinds, words)
        kind = tuple(kinds)
        entry = self._entries.get(kind)
        if entry is None:
            entry = self._entries[kind] = self._entry(kind, arguments)
        return entry(words)

    def compiled(self) -> Any:
        """The function as Numba sees it, with the loops that it calls."""
        from numba import njit

        code, names = self._function.__code__, self._function.__globals__
        used = {name: names[name] for name in code.co_names if isinstance(names.get(name), CompiledLoop)}
        called = {name: each.compiled() for name, each in used.items() if each is not self}
        function = FunctionType(code, {**names, **called}, self._function.__name__)
        alone: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "_nrt": False}
        return njit(nogil=True, **alone, **self._options)(function)

    def _entry(self, kind: tuple[object, ...], arguments: tuple[Any, ...]) -> Entry:
        """The machine code for arguments of this kind, from its file, or compiled and written there."""
        status = os.stat(self._function.__code__.co_filename)
        here = f"{os.uname().machine} {llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()} {kind}"
        made_for = f"{here} {llvmlite.__version__} {status.st_mtime_ns} {status.st_size}"
        name = f"{self._function.__module__}.{self._function.__name__}-{zlib.crc32(here.encode()):08x}.loop"
        about, image = _read(Path(loops_folder(), name))
        if about.get("made_for") != made_for:
            about, image = self._compile(arguments)
            about |= {"made_for": made_for, "checksum": zlib.crc32(image)}
            with suppress(BadInput):  # it is compiled again next time
                write_whole(Path(loops_folder(), name), json.dumps(about).encode() + b"\n" + image)
        return _linked(image, words=_types(kind), **{key: about[key] for key in ("symbol", "results", "several")})

    def _compile(self, arguments: tuple[Any, ...]) -> tuple[dict[str, Any], bytes]:
        """The machine code, and what a call has to know: its name, the types of its results, and whether these are a
        tuple."""
        from numba import typeof, types

        compiled, kinds = self.compiled(), tuple(map(typeof, arguments))
        compiled.compile(kinds)
        module = llvm.parse_assembly(compiled.inspect_llvm(kinds))
        result = compiled.nopython_signatures[-1].return_type
        several = isinstance(result, types.BaseTuple)
        found = [str(types.unliteral(each)) for each in (result if several else (result,))]
        results = "".join(np.dtype(each).char for each in found if each != "none")
        symbol = next(each.name for each in module.functions if not each.is_declaration)
        return {"symbol": symbol, "results": results, "several": several}, _machine().emit_object(module)


def loop(function: Any = None, **options: Any) -> Any:
    """The decorator of a `CompiledLoop`, with options of Numba's."""
    return CompiledLoop(function, **options) if function is not None else lambda given: CompiledLoop(given, **options)


def vector(array: Any) -> Any:
    """A view of the whole array, for loops, which cannot reshape. Raises ValueError if it is not contiguous."""
    if not array.flags.c_contiguous:
        raise ValueError("a loop needs an array that lies in one piece")
    return array.reshape(-1)


def _flatten(argument: Any, kinds: list[object], words: list[Any]) -> None:
    """Append the kind of an argument, and the words in which Numba's code gets it."""
    if isinstance(argument, np.ndarray):
        flags = argument.flags.num
        kinds += argument.dtype, argument.ndim, flags & C_ORDER or flags & F_ORDER, flags & ALIGNED_WRITEABLE
        words += None, None, argument.size, argument.itemsize, argument.ctypes.data, *argument.shape, *argument.strides
    elif isinstance(argument, tuple):
        kinds.append(len(argument))
        for each in argument:
            _flatten(each, kinds, words)
    else:
        kinds.append(type(argument))
        words.append(argument.item() if isinstance(argument, np.generic) else argument)


def _types(kind: tuple[Any, ...]) -> list[Any]:
    """The types in C of the words of arguments of this kind."""
    pointer, size, found = ctypes.c_void_p, ctypes.c_ssize_t, list[Any]()
    for each, dimensions in zip(kind, (*kind[1:], None), strict=True):
        if isinstance(each, np.dtype):
            found += [pointer, pointer, size, size, pointer] + [size] * (2 * dimensions)
        elif isinstance(each, type):
            found.append(pointer if each is type(None) else np.ctypeslib.as_ctypes_type(each))
    return found


def _read(path: Path) -> tuple[dict[str, Any], bytes]:
    """What the file of a loop says about it, and its machine code; nothing if it is missing or damaged."""
    with suppress(OSError, ValueError, LookupError, TypeError):
        first, _, image = path.read_bytes().partition(b"\n")
        about: dict[str, Any] = json.loads(first)
        if about["checksum"] == zlib.crc32(image):
            return about, image
    return {}, b""


def _linked(image: bytes, symbol: str, words: list[Any], results: str, several: bool) -> Entry:
    """What calls the machine code with such words."""
    library = llvm.JITLibraryBuilder().add_object_img(image).add_current_process().export_symbol(symbol)
    tracker = library.link(_linker(), f"{symbol} {next(LINKED)}")  # without it the code would be unloaded
    function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *words)(tracker[symbol])
    form = struct.Struct(results)

    def call(values: Sequence[Any], tracker: Any = tracker) -> Any:
        result, error = ctypes.create_string_buffer(max(form.size, 8)), ctypes.c_void_p()
        if function(ctypes.addressof(result), ctypes.addressof(error), *values):
            raise RuntimeError(f"{symbol}: an exception in a compiled loop")
        found = form.unpack_from(result)
        return found if several else found[0] if found else None

    return call


@cache
def _machine() -> Any:
    """This machine, for code that runs on it alone."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features().flatten()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(cpu=llvm.get_host_cpu_name(), features=features, opt=3, jit=True)


@cache
def _linker() -> Any:
    _machine()
    return llvm.create_lljit_compiler()
