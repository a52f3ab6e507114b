"""A stand-in for CuPy where there is no GPU, so that the device's code path can be tested on the host.

Put the folder above on sys.path, and `import cupy` gives this. Kernels run as compiled for the host by g++. Functions
that are not here are NumPy's, on what is inside the arrays.
"""

from typing import Any

import numpy as np

from . import cuda, torch_cuda
from .arrays import inside, ndarray, outside
from .raw import Order, RawKernel, RawModule

__version__ = "0.fake"
__all__ = ["Order", "RawKernel", "RawModule", "asnumpy", "cuda", "get_array_module", "ndarray"]


def empty(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    """A new array, full of garbage."""
    return ndarray(shape, dtype)


def empty_like(like: ndarray, dtype: Any = None) -> ndarray:
    """A new array of the shape of another."""
    return ndarray(like.shape, dtype or like.dtype)


def array(value: Any, dtype: Any = None, copy: bool = True) -> ndarray:
    """A copy on the device, of a NumPy array too."""
    return ndarray(host=np.array(value._host if isinstance(value, ndarray) else value, dtype))


def asarray(value: Any, dtype: Any = None) -> ndarray:
    """The array itself if it is one on the device, else a copy there."""
    return value if isinstance(value, ndarray) and dtype in (None, value.dtype) else array(value, dtype)


ascontiguousarray = asarray


def asnumpy(value: Any, stream: Any = None, out: Any = None) -> np.ndarray:
    """A copy on the host."""
    return value.get(stream, out=out) if isinstance(value, ndarray) else np.asarray(value)


def from_dlpack(tensor: Any) -> ndarray:
    """An array in the memory of a tensor."""
    return ndarray(host=np.from_dlpack(tensor))


def get_array_module(*arrays: Any) -> Any:
    """This module if one of the arrays is a fake, else NumPy."""
    import sys

    return sys.modules[__name__] if any(isinstance(each, ndarray) for each in arrays) else np


def _on_the_device(function: Any) -> Any:
    def call(*inputs: Any, **settings: Any) -> Any:
        result = function(*inside(inputs), **inside(settings))
        return settings["out"] if settings.get("out") is not None else outside(result)

    return call


def __getattr__(name: str) -> Any:
    value = getattr(np, name)
    return _on_the_device(value) if callable(value) and not isinstance(value, type) else value


if __name__ == "cupy":  # and not under another name, beside the true one
    torch_cuda.stand_in_for_good()
