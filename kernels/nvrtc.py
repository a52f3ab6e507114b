"""Compiling the kernels without a GPU, by NVRTC as CuPy would, to see warnings, registers and spills.

    python -m mpitrain.kernels.nvrtc        the table of kernels/README.md

NVRTC is looked for in its wheel (`nvidia-cuda-nvrtc`, part of the extra `test`), then where the system keeps libraries.
"""

import ctypes
import re
import sys
from ctypes.util import find_library
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mpitrain.kernels.launcher import FOLDER, options, source

ARCHITECTURES = ("sm_75", "sm_80", "sm_90")
#: What CuPy adds to our options.
ADDED = ("-ftz=true",)


class Usage(NamedTuple):
    """What ptxas says of a kernel: registers a thread, bytes spilled (stored and loaded), shared memory a block."""

    kernel: str
    registers: int
    spilled: int
    shared: int


class Compiled(NamedTuple):
    """A module: everything the compiler said, its PTX, and what each kernel needs."""

    log: str
    ptx: str
    usage: list[Usage]


@cache
def library() -> Any:
    """NVRTC. Raises FileNotFoundError when there is none."""
    wheels = [Path(folder) / "nvidia" / "cu13" / "lib" for folder in sys.path]
    for folder in wheels:
        for builtins in sorted(folder.glob("libnvrtc-builtins.so.*")):
            ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)  # NVRTC looks for it by name
        for found in sorted(folder.glob("libnvrtc.so.*")):
            return ctypes.CDLL(str(found))
    name = find_library("nvrtc")
    if name is None:
        raise FileNotFoundError("NVRTC is not installed: pip install nvidia-cuda-nvrtc")
    return ctypes.CDLL(name)


def files() -> list[str]:
    """The names of the .cu files."""
    return sorted(path.stem for path in FOLDER.glob("*.cu"))


def compiled(file: str, dtype: Any, architecture: str) -> Compiled:
    """Compile kernels/`file`.cu. Raises RuntimeError, with what the compiler said, when it fails."""
    nvrtc, program = library(), ctypes.c_void_p()
    _check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source(file).encode(), f"{file}.cu".encode(), 0, None, None))
    try:
        wanted = (*options(dtype), *ADDED, f"-arch={architecture}", "--ptxas-options=-v")
        status = nvrtc.nvrtcCompileProgram(
            program, len(wanted), (ctypes.c_char_p * len(wanted))(*(option.encode() for option in wanted))
        )
        log = _text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
        if status:
            raise RuntimeError(f"{file}.cu for {architecture}: {log}")
        return Compiled(log, _text(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program), _usage(log))
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _text(size: Any, get: Any, program: ctypes.c_void_p) -> str:
    length = ctypes.c_size_t()
    _check(size(program, ctypes.byref(length)))
    text = ctypes.create_string_buffer(max(length.value, 1))
    _check(get(program, text))
    return text.value.decode()


def _check(status: int) -> None:
    if status:
        raise RuntimeError(f"NVRTC: error {status}")


def _usage(log: str) -> list[Usage]:
    usage = []
    for part in log.split("Compiling entry function ")[1:]:
        shared = re.search(r"(\d+) bytes smem", part)
        spilled = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", part)
        registers = re.search(r"Used (\d+) registers", part)
        if not (spilled and registers):
            raise RuntimeError(f"ptxas said nothing of registers and spills: {part}")
        spills = int(spilled[1]) + int(spilled[2])
        usage.append(Usage(part.split("'")[1], int(registers[1]), spills, int(shared[1]) if shared else 0))
    return sorted(usage)


def table() -> str:
    """Registers of every kernel on every architecture, float32, then bytes spilled and shared."""
    lines = [
        f"| kernel | {' | '.join(ARCHITECTURES)} | spilled | shared |",
        "|---|" + "---|" * (len(ARCHITECTURES) + 2),
    ]
    for file in files():
        for same in zip(*(compiled(file, np.float32, each).usage for each in ARCHITECTURES), strict=True):
            registers = " | ".join(str(usage.registers) for usage in same)
            spilled, shared = max(usage.spilled for usage in same), max(usage.shared for usage in same)
            lines.append(f"| `{file}.cu` {same[0].kernel} | {registers} | {spilled} | {shared} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
