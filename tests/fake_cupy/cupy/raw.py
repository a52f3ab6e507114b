"""CuPy's RawModule, with g++ for the compiler and the host for the device (host.h)."""

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np

from .arrays import ndarray
from .cuda import current, launched

SHIM = Path(__file__).with_name("host.h")
#: No fused multiply-add, as on the device; a kernel called `wait` is not the system's; fortified longjmp refuses to
#: change stacks.
FLAGS = (
    "-O2 -shared -fPIC -ffp-contract=off -Wl,-Bsymbolic -U_FORTIFY_SOURCE "
    "-Wall -Wextra -Werror -Wno-unknown-pragmas -Wno-clobbered"
)
ENDED, STUCK, ODD_BLOCK = 0, 1, 2
_one_at_a_time = threading.Lock()


class Order:
    """In which order blocks and threads run: 0 is one after another, any other number seeds an adversarial order."""

    seed = 0


class RawModule:
    """The kernels of a text, compiled when first asked for."""

    def __init__(self, code: str, options: tuple[str, ...] = ()) -> None:
        self._code, self._options = code, options
        self._library: ctypes.CDLL | None = None

    def get_function(self, name: str) -> "RawKernel":
        """A kernel by its name."""
        if self._library is None:
            self._library = ctypes.CDLL(str(compiled(self._code, self._options)))
        return RawKernel(self._library, name)


class RawKernel:
    """One kernel: call it with grid, block and arguments, as CuPy's."""

    def __init__(self, library: ctypes.CDLL, name: str) -> None:
        self.name = name
        self._launch = getattr(library, f"launch_{name}")
        types = getattr(library, f"types_{name}")
        types.restype = ctypes.c_char_p
        self.types = types().decode().split()

    def __call__(self, grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[Any, ...]) -> None:
        if len(arguments) != len(self.types):
            raise TypeError(f"{self.name} takes {len(self.types)} arguments, not {len(arguments)}")
        launched.append(self.name)
        held = [self._held(*pair) for pair in zip(self.types, arguments, strict=True)]
        pointers = (ctypes.c_void_p * len(held))(*(each.ctypes.data for each in held))
        sizes = [(ctypes.c_uint * 3)(*size, *(1,) * (3 - len(size))) for size in (grid, block)]
        seed = ctypes.c_uint(Order.seed)

        def run(kept: Any = (held, arguments)) -> None:
            with _one_at_a_time:
                status = self._launch(pointers, *sizes, seed)
            if status == STUCK:
                raise RuntimeError(f"{self.name} does not end: threads wait for what does not come")
            if status == ODD_BLOCK:
                raise ValueError(f"{self.name}: blocks of {block} in a grid of {grid}")

        current().submit(run)

    def _held(self, wanted: str, argument: Any) -> np.ndarray:
        """The argument as bytes that the kernel can read; TypeError when it is not of exactly the kernel's type."""
        if isinstance(argument, ndarray) and wanted[0] == "p" and argument.dtype.str[1:] == wanted[1:]:
            return np.array(argument.data.ptr, np.uintp)
        if isinstance(argument, np.uintp) and wanted[0] == "p" and argument == 0:
            return np.array(argument)
        if isinstance(argument, np.generic) and argument.dtype.str[1:] == wanted:
            return np.array(argument)
        given = getattr(argument, "dtype", type(argument).__name__)
        raise TypeError(f"{self.name}: {type(argument).__name__} of {given} for a parameter of type {wanted}")


def compiled(code: str, options: tuple[str, ...]) -> Path:
    """The shared library of a text, kept from one run to the next."""
    compiler = shutil.which("g++")
    if compiler is None:
        raise FileNotFoundError("g++ is needed to run kernels on the host")
    kernels = re.findall(r"__global__\s+(?:__launch_bounds__\(\w+\)\s+)?void\s+(\w+)", code)
    text = code + "".join(f"\nKERNEL({name})" for name in kernels) + "\n"
    key = hashlib.sha256("\0".join((text, SHIM.read_text(), *options, FLAGS)).encode()).hexdigest()[:24]
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "mpitrain-host-kernels"
    library = folder / f"{key}.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            source, made = Path(scratch) / "kernel.cpp", Path(scratch) / "kernel.so"
            source.write_text(f'#include "{SHIM}"\n{text}')
            command = [compiler, *FLAGS.split(), *options, str(source), "-o", str(made)]
            result = subprocess.run(command, capture_output=True, text=True, timeout=600)
            if result.returncode:
                raise RuntimeError(f"{' '.join(command)}\n{result.stderr}")
            made.rename(library)
    return library
