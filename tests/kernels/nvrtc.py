"""Compile the kernels without a GPU, with NVRTC as CuPy does, to show warnings, registers and spills.

    python -m tests.kernels.nvrtc        prints the table of kernels/README.md

NVRTC is searched for in its wheel (`nvidia-cuda-nvrtc`, part of the extra `test`), then among the system's libraries.
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
#: The options that CuPy adds to ours.
ADDED = ("-ftz=true",)
#: With a driver NVRTC keeps what it has compiled, and would then have nothing to say of registers.
ANEW = ("--no-cache",)


class Usage(NamedTuple):
    """Resources of a kernel as reported by ptxas: registers per thread, bytes spilled, shared memory per block."""

    kernel: str
    registers: int
    spilled: int
    shared: int


class Compiled(NamedTuple):
    """A compiled module: the compiler's output, the PTX, and the resources of each kernel."""

    log: str
    ptx: str
    usage: list[Usage]


@cache
def library() -> Any:
    """Load NVRTC. Raises FileNotFoundError if there is none."""
    wheels = [Path(folder) / "nvidia" / "cu13" / "lib" for folder in sys.path]
    for folder in wheels:
        for builtins in sorted(folder.glob("libnvrtc-builtins.so.*")):
            ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)  # NVRTC searches for it by name
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
    """Compile kernels/`file`.cu. Raises RuntimeError with the compiler's output if that fails."""
    nvrtc, program = library(), ctypes.c_void_p()
    _check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source(file).encode(), f"{file}.cu".encode(), 0, None, None))
    try:
        wanted = (*options(dtype), *ADDED, *ANEW, f"-arch={architecture}", "--ptxas-options=-v")
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
    """A table with the registers of every kernel on every architecture for float32, then bytes spilled and shared."""
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
