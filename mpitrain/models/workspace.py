"""Buffers that layers write to, kept between minibatches, and convolutions as matrix products over patches in them."""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from mpitrain import ops
from mpitrain.flat import Array


@dataclass(frozen=True)
class Patches:
    """A convolution's geometry: square kernel, stride and padding, rows and columns of the output."""

    kernel: int
    stride: int
    pad: int
    image: tuple[int, int]


class Product(Protocol):
    """The products of a convolution with weights [kh, kw, c, filters], x [n, h, w, c] and z [n, *image, filters]."""

    def examples(self, count: int, channels: int, itemsize: int) -> int:
        """How many of `count` examples to process at a time."""

    def forward(self, x: Array, weights: Array, z: Array) -> None:
        """z ← x * W."""

    def weight_gradient(self, x: Array, dz: Array, out: Array, add: bool) -> None:
        """The gradient with respect to the weights, written to `out` or added to it."""

    def input_gradient(self, dz: Array, weights: Array, dx: Array) -> None:
        """The gradient with respect to x."""


class Workspace:
    """Named buffers that never shrink, and the array functions of their device.

    `xp` makes arrays (numpy, or a module like it), `ops` has the functions of mpitrain.ops. Patch matrices of
    convolutions have at least `patch_rows` rows, so that matrix products run at full speed, within `patch_bytes`.
    """

    patch_rows, patch_bytes = 1024, 8 << 20  # these fit in a CPU's cache

    def __init__(self, xp: Any = np, ops: ModuleType | Any = ops) -> None:
        self.xp = xp
        self.ops = ops
        #: Called between the blocks of a long layer, so that messages progress.
        self.progress: Callable[[], None] = lambda: None
        #: A bias that the previous layer has left to the activation that follows.
        self.bias: Array | None = None
        self._views: dict[tuple[str, Any], Array] = {}
        self._buffers: dict[tuple[str, Any], Array] = {}

    def another(self) -> "Workspace":
        """A workspace on the same device with its own buffers."""
        return type(self)(self.xp, self.ops)

    def product(self, name: str, window: Patches) -> Product:
        """The products of the convolution `name`."""
        return PatchProduct(name, window, self)

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


class PatchProduct:
    """Copies patches and multiplies them by the weights, in blocks whose patches stay in a CPU's cache."""

    def __init__(self, name: str, window: Patches, workspace: Workspace) -> None:
        self._name, self._window, self._workspace = name, window, workspace

    def examples(self, count: int, channels: int, itemsize: int) -> int:
        rows = self._window.image[0] * self._window.image[1]
        most = self._workspace.patch_bytes // (rows * self._window.kernel**2 * channels * itemsize)
        return max(1, min(self._workspace.patch_rows // rows, most, count))

    def forward(self, x: Array, weights: Array, z: Array) -> None:
        patches = self._gather(x)
        matrix = weights.reshape(patches.shape[1], -1)
        self._workspace.ops.matmul(patches, matrix, z.reshape(len(patches), -1))

    def weight_gradient(self, x: Array, dz: Array, out: Array, add: bool) -> None:
        patches = self._gather(x)
        columns = dz.reshape(len(patches), -1)
        total = out.reshape(-1, columns.shape[1])
        if not add:
            self._workspace.ops.matmul(patches.T, columns, total)
            return
        # NumPy's product cannot add to its output.
        part = self._workspace.array(f"{self._name}.part", total.shape, out.dtype)
        self._workspace.ops.matmul(patches.T, columns, part)
        np.add(total, part, out=total)

    def input_gradient(self, dz: Array, weights: Array, dx: Array) -> None:
        patches, w = self._room(dx), self._window
        matrix = weights.reshape(patches.shape[1], -1)
        self._workspace.ops.matmul(dz.reshape(len(patches), -1), matrix.T, patches)
        self._workspace.ops.add_patches(self._images(patches), (w.kernel, w.kernel), w.stride, w.pad, dx)

    def _gather(self, x: Array) -> Array:
        patches, w = self._room(x), self._window
        self._workspace.ops.gather_patches(x, (w.kernel, w.kernel), w.stride, w.pad, self._images(patches))
        return patches

    def _room(self, x: Array) -> Array:
        w = self._window
        shape = (len(x) * w.image[0] * w.image[1], w.kernel**2 * x.shape[3])
        return self._workspace.array(f"{self._name}.patches", shape, x.dtype)

    def _images(self, matrix: Array) -> Array:
        return matrix.reshape(-1, *self._window.image, matrix.shape[1])
