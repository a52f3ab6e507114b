"""Loading PyTorch only where it is needed: it takes seconds, and need not be installed."""

import ctypes
import sys
from contextlib import suppress
from types import ModuleType

from mpitrain.errors import library

#: Options of glibc's mallopt, and the greatest size for which it takes memory from its own heap.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, GREATEST = -1, -3, 32 << 20


def require(key: str) -> ModuleType:
    """Load PyTorch. Raises BadInput naming the key that needs it."""
    return library("torch", f"{key} needs PyTorch", "torch")


def without_cuda(key: str) -> str:
    """Why PyTorch computes on no GPU, "" if it does. Raises BadInput naming the key that needs PyTorch."""
    torch = require(key)
    if torch.version.cuda is None:
        return f"this PyTorch has no CUDA ({torch.__version__})"
    return "" if torch.cuda.is_available() else f"this PyTorch finds no GPU ({torch.__version__})"


def limit_threads(count: int) -> None:
    """Let PyTorch compute with this many threads, if it is loaded: it ignores a limit that was set before."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(count)


def keep_memory() -> None:
    """Let glibc, where that is the C library, keep the memory that is freed.

    PyTorch allocates the activations and gradients of every step anew. Given back to the system in between, they cost a
    page fault for each 4 KB: 8 to 13 % of a small ResNet's step.
    """
    with suppress(AttributeError, OSError):
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_THRESHOLD, GREATEST)
        library.mallopt(M_TRIM_THRESHOLD, -1)  # never
