"""Buffers that layers write to, kept between minibatches, and the array functions that several layers call."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numba import njit

from mpitrain.flat import Array

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Patches:
    """A convolution's geometry: square kernel, stride and padding, rows and columns of the output."""

    kernel: int
    stride: int
    pad: int
    image: tuple[int, int]


class Workspace:
    """Named buffers that never shrink, and the functions of their device.

    `xp` makes arrays (numpy, or a module like it); `kernels` has the device's own functions, by name. Patch matrices of
    convolutions have at least `patch_rows` rows, so that matrix products run at full speed, within `patch_bytes`.
    """

    patch_rows, patch_bytes = 1024, 8 << 20  # these fit in a CPU's cache
    #: Whether an activation adds the bias of the layer before it, in one pass.
    fuses_bias = False

    def __init__(self, xp: Any = np, kernels: object = None) -> None:
        self.xp, self.kernels = xp, kernels
        #: Called between the blocks of a long layer, so that messages progress.
        self.progress: Callable[[], None] = lambda: None
        self._views: dict[tuple[str, Any], Array] = {}
        self._buffers: dict[tuple[str, Any], Array] = {}

    def another(self) -> "Workspace":
        """A workspace on the same device with its own buffers."""
        return type(self)(self.xp, self.kernels)

    def kernel(self, function: Function) -> Function:
        """The device's kernel of the function's name, or the function itself where there is none."""
        kernel: Function = getattr(self.kernels, function.__name__, function)
        return kernel

    def array(self, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
        """An uninitialised array of `shape`; allocates only if the buffer `name` was never that large."""
        key = name, dtype
        view = self._views.get(key)
        if view is None or view.shape != shape:
            size = int(np.prod(shape))
            buffer = self._buffers.get(key)
            if buffer is None or buffer.size < size:
                buffer = self._buffers[key] = self.xp.empty(size, dtype)
            view = self._views[key] = buffer[:size].reshape(shape)
        return view


def matmul(a: Array, b: Array, out: Array) -> None:
    """out ← a·b; each may be a transposed view."""
    np.matmul(a, b, out=out)


def add_bias(y: Array, bias: Array) -> None:
    """y [..., units] ← y + bias [units]."""
    np.add(y, bias, out=y)


def column_sums(x: Array, out: Array) -> None:
    """out [columns] ← the sums of x [rows, columns]."""
    np.sum(x, axis=0, out=out)


@njit(cache=True, nogil=True)
def add_scaled(y: Array, x: Array, scale: float) -> None:
    """y ← y + scale·x, in one pass."""
    flat_y, flat_x = y.reshape(-1), x.reshape(-1)
    factor = flat_y.dtype.type(scale)
    for i in range(flat_y.size):
        flat_y[i] += factor * flat_x[i]
