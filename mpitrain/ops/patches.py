"""Patches of images as matrix rows (im2col) and their adjoint (col2im).

In NHWC one row of a patch, kernel width × channels, is contiguous in the image, so both are copies of long runs.
"""

from numba import njit

from mpitrain.flat import Array


@njit(cache=True, nogil=True)
def gather_patches(x: Array, kernel: tuple[int, int], stride: int, pad: int, out: Array) -> None:
    """x [n, h, w, c] → out [n, rows, columns, kh·kw·c]: the patch under each output pixel, 0 outside the image."""
    n, height, width, channels = x.shape
    kernel_height, kernel_width = kernel
    run = kernel_width * channels
    images = x.reshape(n, height, width * channels)
    for i in range(n):
        for row in range(out.shape[1]):
            for column in range(out.shape[2]):
                left = column * stride - pad
                begin = max(0, -left) * channels
                end = min(kernel_width, width - left) * channels
                patch = out[i, row, column]
                for k in range(kernel_height):
                    y = row * stride + k - pad
                    target = patch[k * run : (k + 1) * run]
                    if y < 0 or y >= height:
                        target[:] = 0
                        continue
                    source = images[i, y, left * channels + begin : left * channels + end]
                    for t in range(begin):
                        target[t] = 0
                    middle = target[begin:end]
                    for t in range(source.size):
                        middle[t] = source[t]
                    for t in range(end, run):
                        target[t] = 0


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
