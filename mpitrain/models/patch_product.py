"""Convolution of a block of examples as a matrix product over their patches."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from mpitrain.flat import Array

if TYPE_CHECKING:
    from mpitrain.models.workspace import Workspace


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


class PatchProduct:
    """Copies patches and multiplies them by the weights, in blocks whose patches stay in a CPU's cache."""

    def __init__(self, name: str, window: Patches, workspace: "Workspace") -> None:
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
