"""Patches of images as matrix rows (im2col) and their adjoint (col2im).

In NHWC one row of a patch, kernel width × channels, is contiguous in the image, so both are copies of long runs.
"""

import numpy as np
from numba import njit

from mpitrain.flat import Array

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
