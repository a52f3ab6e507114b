"""Convolutions as matrix products over patches: images as matrix rows (im2col) and the adjoint (col2im).

In NHWC one row of a patch, kernel width × channels, is contiguous in the image, so both are copies of long runs.
"""

from collections.abc import Sequence

import numpy as np
from numba import njit

from mpitrain.flat import Array, share
from mpitrain.models.workspace import Patches, Workspace, matmul


def convolution(name: str, window: Patches, workspace: Workspace) -> "PatchProduct":
    """The object that computes the convolution layer `name`, here as copied patches times weights. A device may have a
    function of this name whose object needs no patches (`Workspace.kernel`)."""
    return PatchProduct(name, window, workspace)


class PatchProduct:
    """The products of a convolution with weights [kh, kw, c, filters], x [n, h, w, c] and z [n, *image, filters].

    Copies patches and multiplies them by the weights, in blocks whose patches stay in a CPU's cache.
    """

    def __init__(self, name: str, window: Patches, workspace: Workspace) -> None:
        self._name, self._window, self._workspace = name, window, workspace

    def examples(self, count: int, channels: int, itemsize: int) -> int:
        """How many of `count` examples to process at a time."""
        rows = self._window.image[0] * self._window.image[1]
        most = self._workspace.patch_bytes // (rows * self._window.kernel**2 * channels * itemsize)
        return max(1, min(self._workspace.patch_rows // rows, most, count))

    def forward(self, x: Array, weights: Array, z: Array) -> None:
        """z ← x * W."""
        patches = self._gather(x)
        matrix = weights.reshape(patches.shape[1], -1)
        self._workspace.kernel(matmul)(patches, matrix, z.reshape(len(patches), -1))

    def weight_gradient(self, x: Array, dz: Array, out: Array, add: bool) -> None:
        """The gradient with respect to the weights, written to `out` or added to it."""
        patches = self._gather(x)
        columns = dz.reshape(len(patches), -1)
        total = out.reshape(-1, columns.shape[1])
        if not add:
            self._workspace.kernel(matmul)(patches.T, columns, total)
            return
        # NumPy's product cannot add to its output.
        part = self._workspace.array(f"{self._name}.part", total.shape, out.dtype)
        self._workspace.kernel(matmul)(patches.T, columns, part)
        np.add(total, part, out=total)

    def input_gradient(self, dz: Array, weights: Array, dx: Array) -> None:
        """The gradient with respect to x."""
        patches, w = self._room(dx), self._window
        matrix = weights.reshape(patches.shape[1], -1)
        self._workspace.kernel(matmul)(dz.reshape(len(patches), -1), matrix.T, patches)
        self._workspace.kernel(add_patches)(self._images(patches), (w.kernel, w.kernel), w.stride, w.pad, dx)

    def _gather(self, x: Array) -> Array:
        patches, w = self._room(x), self._window
        self._workspace.kernel(gather_patches)(x, (w.kernel, w.kernel), w.stride, w.pad, self._images(patches))
        return patches

    def _room(self, x: Array) -> Array:
        w = self._window
        shape = (len(x) * w.image[0] * w.image[1], w.kernel**2 * x.shape[3])
        return self._workspace.array(f"{self._name}.patches", shape, x.dtype)

    def _images(self, matrix: Array) -> Array:
        return matrix.reshape(-1, *self._window.image, matrix.shape[1])


class GroupProduct:
    """A grouped convolution: each filter sees only the channels of its group (Krizhevsky et al. 2012, §3.2). Weights
    are [kh, kw, channels of a group, filters]. `products` has a product for each group, which computes with copies of
    the group's channels and weights."""

    def __init__(self, name: str, products: Sequence[PatchProduct], workspace: Workspace) -> None:
        self._name, self._products, self._workspace = name, products, workspace

    def examples(self, count: int, channels: int, itemsize: int) -> int:
        return self._products[0].examples(count, channels, itemsize)  # the patches of all groups fit in cache together

    def forward(self, x: Array, weights: Array, z: Array) -> None:
        for group, product in enumerate(self._products):
            part = self._room("z", group, z)
            product.forward(self._copy("x", group, x), self._copy("weights", group, weights), part)
            np.copyto(self._part(group, z), part)

    def weight_gradient(self, x: Array, dz: Array, out: Array, add: bool) -> None:
        for group, product in enumerate(self._products):
            part = self._copy("gradient", group, out) if add else self._room("gradient", group, out)
            product.weight_gradient(self._copy("x", group, x), self._copy("z", group, dz), part, add)
            np.copyto(self._part(group, out), part)

    def input_gradient(self, dz: Array, weights: Array, dx: Array) -> None:
        for group, product in enumerate(self._products):
            part = self._room("x", group, dx)
            product.input_gradient(self._copy("z", group, dz), self._copy("weights", group, weights), part)
            np.copyto(self._part(group, dx), part)

    def _part(self, group: int, whole: Array) -> Array:
        """The group's part of the last axis, channels or filters."""
        return whole[..., share(whole.shape[-1], group, len(self._products))]

    def _copy(self, what: str, group: int, whole: Array) -> Array:
        room = self._room(what, group, whole)
        np.copyto(room, self._part(group, whole))
        return room

    def _room(self, what: str, group: int, whole: Array) -> Array:
        return self._workspace.array(f"{self._name}.group.{what}", self._part(group, whole).shape, whole.dtype)


U = np.uint64  # an unsigned index needs no check for negative values


@njit(cache=True, nogil=True, inline="always")
def _copy_eight(source: Array, i: np.uint64, target: Array, j: np.uint64) -> None:
    # All loads come before all stores, so that the compiler can ignore overlap and use a single vector move.
    a, b, c, d = source[i], source[i + U(1)], source[i + U(2)], source[i + U(3)]
    e, f, g, h = source[i + U(4)], source[i + U(5)], source[i + U(6)], source[i + U(7)]
    target[j], target[j + U(1)], target[j + U(2)], target[j + U(3)] = a, b, c, d
    target[j + U(4)], target[j + U(5)], target[j + U(6)], target[j + U(7)] = e, f, g, h


@njit(cache=True, nogil=True)
def gather_patches(x: Array, kernel: tuple[int, int], stride: int, pad: int, out: Array) -> None:
    """x [n, h, w, c] → out [n, rows, columns, kh·kw·c]: the patch under each output pixel, 0 outside the image."""
    n, height, width, channels = x.shape
    kernel_height, kernel_width = kernel
    run = kernel_width * channels
    source, target = x.reshape(-1), out.reshape(-1)
    start = U(0)
    for i in range(n):
        for row in range(out.shape[1]):
            for column in range(out.shape[2]):
                left = column * stride - pad
                begin = max(0, -left) * channels
                length = min(kernel_width, width - left) * channels - begin
                for k in range(kernel_height):
                    y = row * stride + k - pad
                    inside = 0 <= y < height
                    if not inside or length < run:
                        for t in range(run):
                            target[start + U(t)] = 0
                    if inside:
                        s, d = U(((i * height + y) * width + left) * channels + begin), start + U(begin)
                        if length >= 8:
                            for t in range(0, length - 7, 8):
                                _copy_eight(source, s + U(t), target, d + U(t))
                            _copy_eight(source, s + U(length - 8), target, d + U(length - 8))
                        else:
                            for t in range(length):
                                target[d + U(t)] = source[s + U(t)]
                    start += U(run)


@njit(cache=True, nogil=True)
def add_patches(patches: Array, kernel: tuple[int, int], stride: int, pad: int, out: Array) -> None:
    """The adjoint of gather_patches: out [n, h, w, c] = 0 plus every patch at its place."""
    n, height, width, channels = out.shape
    kernel_height, kernel_width = kernel
    run = kernel_width * channels
    images = out.reshape(n, height, width * channels)
    for i in range(n):
        images[i] = 0
        for row in range(patches.shape[1]):
            for column in range(patches.shape[2]):
                left = column * stride - pad
                begin = max(0, -left) * channels
                end = min(kernel_width, width - left) * channels
                patch = patches[i, row, column]
                for k in range(kernel_height):
                    y = row * stride + k - pad
                    if y < 0 or y >= height:
                        continue
                    source = patch[k * run + begin : k * run + end]
                    target = images[i, y, left * channels + begin : left * channels + end]
                    for t in range(source.size):
                        target[t] += source[t]
