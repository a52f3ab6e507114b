"""Compile kernels and launch them through CuPy."""

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from mpitrain.flat import Array

FOLDER = Path(__file__).resolve().parent
#: The C type of `real`, by dtype.
REAL = {"float32": "float", "float64": "double"}
#: Default number of threads per block.
THREADS = 256
#: Blocks per multiprocessor for a loop over elements: a few times as many as fit, so that all finish at about one time.
BLOCKS = 32


@cache
def source(file: str) -> str:
    """The text of kernels/`file`.cu with its headers in their places.

    CuPy caches compiled modules by text and options, and would not notice that an included file has changed.
    """
    return re.sub(
        r'#include "(\w+\.cuh)"',
        lambda found: (FOLDER / found[1]).read_text().replace("#pragma once\n", ""),
        (FOLDER / f"{file}.cu").read_text(),
    )


def options(dtype: Any) -> tuple[str, ...]:
    """The compiler options for a module for arrays of `dtype`, float32 or float64."""
    return "-std=c++17", f"-DREAL={REAL[np.dtype(dtype).name]}"


class Launcher:
    """The modules of the kernels on one device, each compiled when first needed (CuPy caches them on disk).

    `xp` is CuPy. Launches go to its current stream and return at once.
    """

    def __init__(self, xp: Any) -> None:
        self.xp = xp
        self._functions: dict[tuple[str, str, Any], Any] = {}
        #: The most blocks for one loop.
        self.most = BLOCKS * xp.cuda.Device().attributes["MultiProcessorCount"]

    def launch(
        self, file: str, kernel: str, dtype: Any, grid: tuple[int, ...], block: tuple[int, ...], *arguments: Any
    ) -> None:
        """Launch `kernel` of `file`, compiled for `dtype`.

        A Python float is passed as `real`, an int as `Index`, None as a null pointer; NumPy scalars and arrays are
        passed unchanged. Arrays must be C-contiguous.
        """
        function = self._functions.get((file, kernel, dtype))
        if function is None:
            module = self.xp.RawModule(code=source(file), options=options(dtype))
            function = self._functions[file, kernel, dtype] = module.get_function(kernel)
        function(grid, block, tuple(self._argument(argument, dtype.type) for argument in arguments))

    def over(self, file: str, kernel: str, dtype: Any, size: int, *arguments: Any) -> None:
        """Launch a loop over `size` elements, unless there are none."""
        if size:
            self.launch(file, kernel, dtype, (min(-(-size // THREADS), self.most),), (THREADS,), *arguments)

    def rule(self, file: str, kernel: str, vectors: Sequence[Array], *scalars: float) -> None:
        """Launch a loop over vectors of one length and dtype. The kernel takes the vectors, their length, `scalars`."""
        first = vectors[0]
        if any((v.size, v.dtype) != (first.size, first.dtype) for v in vectors):
            raise ValueError(f"{kernel}: vectors of {[(v.size, v.dtype.name) for v in vectors]}")
        self.over(file, kernel, first.dtype, first.size, *vectors, first.size, *map(float, scalars))

    def _argument(self, value: Any, real: type) -> Any:
        if isinstance(value, self.xp.ndarray):
            if not value.flags.c_contiguous:
                raise ValueError(f"an array of shape {value.shape} and strides {value.strides} is not contiguous")
            return value
        if value is None:
            return np.uintp(0)
        if isinstance(value, float):
            return real(value)
        return np.int64(value) if isinstance(value, int) else value
