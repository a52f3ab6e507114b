"""Max-pooling over square windows inside the image."""

from collections.abc import Mapping
from types import ModuleType

import numpy as np
from numba import njit

from mpitrain.flat import Array
from mpitrain.models.layer import DoesNotFit, Draws, Layer, LayerOptions, OnnxNode, Pixels, Shape, Tensor, Views


class MaxPoolOptions(LayerOptions, frozen=True, tag_field="kind", tag="max-pool"):
    """The maximum of windows of side `size` inside the image, `stride` apart (by default `size`)."""

    size: Pixels
    stride: Pixels | None = None


class MaxPool(Layer, options=MaxPoolOptions):
    """The maximum of each window."""

    kind, images, onnx_channels_first = "pool", True, True

    def __init__(self, options: MaxPoolOptions) -> None:
        super().__init__(options)
        self.size, self.stride = options.size, options.stride or options.size

    def prepare(self, input_shape: Shape) -> Shape:
        height, width, channels = input_shape
        if min(height, width) < self.size:
            why = f"windows of {self.size} do not fit {height} x {width} pixels"
            raise DoesNotFit(self, "size", why)
        return (height - self.size) // self.stride + 1, (width - self.size) // self.stride + 1, channels

    def forward(self, views: Views, x: Array, training: bool = False, draws: Draws | None = None) -> Array:
        y = self.buffer("y", (len(x), *self.output_shape), x)
        self.pool(x, y, self.places(len(x)))
        return y

    def backward(self, views: Views, gradients: Views, dy: Array, need_dx: bool = True) -> Array | None:
        dx = self.buffer("dx", (len(dy), *self.input_shape), dy)
        self.unpool(dy, self.places(len(dy)), dx)
        return dx

    def torch(self, torch: ModuleType, x: Tensor, own: Mapping[str, Tensor], training: bool) -> Tensor:
        return torch.nn.functional.max_pool2d(x, self.size, self.stride)

    def onnx(self, views: Views) -> list[OnnxNode]:
        return [OnnxNode("MaxPool", {}, {"kernel_shape": [self.size] * 2, "strides": [self.stride] * 2})]

    def pool(self, x: Array, y: Array, place: Array) -> None:
        """y ← the maxima of x, `place` ← their positions in the windows."""
        self.workspace.kernel(max_pool)(x, self.size, self.stride, y, place)

    def unpool(self, dy: Array, place: Array, dx: Array) -> None:
        """dx ← 0 plus each dy at the place of its maximum."""
        self.workspace.kernel(max_unpool)(dy, place, self.size, self.stride, dx)

    def places(self, n: int) -> Array:
        """The buffer [n, *output_shape] with the position of each maximum in its window."""
        return self.workspace.array(f"{self.name}.place", (n, *self.output_shape), place_type(self.size))


def place_type(size: int) -> np.dtype:
    """The type of a position in a window of side `size`: a byte where that is enough."""
    return np.dtype(np.uint8 if size <= 16 else np.int32)


@njit(cache=True, nogil=True)
def max_pool(x: Array, size: int, stride: int, out: Array, place: Array) -> None:
    """out [n, h', w', c] = the maximum of each window of x [n, h, w, c].

    `place` (integers up to size² − 1, the shape of out) = its position in the window, row by row.
    The first of equal values is taken; NaN is larger than every number.
    """
    n, rows, columns, channels = out.shape
    found = np.empty(channels, np.int32)  # as wide as a float32, so that the loop over channels works on whole vectors
    for i in range(n):
        for row in range(rows):
            for column in range(columns):
                best = out[i, row, column]
                corner = x[i, row * stride, column * stride]
                for c in range(channels):
                    best[c] = corner[c]
                    found[c] = 0
                for k in range(1, size * size):
                    pixel = x[i, row * stride + k // size, column * stride + k % size]
                    for c in range(channels):
                        wins = (pixel[c] > best[c]) | (pixel[c] != pixel[c])
                        best[c] = pixel[c] if wins else best[c]
                        found[c] = np.int32(k) if wins else found[c]
                for c in range(channels):
                    place[i, row, column, c] = found[c]


@njit(cache=True, nogil=True)
def max_unpool(dy: Array, place: Array, size: int, stride: int, out: Array) -> None:
    """The gradient of max_pool: out [n, h, w, c] = 0 plus each dy at the place of its maximum."""
    n, rows, columns, channels = dy.shape
    for i in range(n):
        out[i] = 0
        for row in range(rows):
            for column in range(columns):
                gradient, where = dy[i, row, column], place[i, row, column]
                for k in range(size * size):
                    pixel = out[i, row * stride + k // size, column * stride + k % size]
                    for c in range(channels):
                        pixel[c] += gradient[c] if where[c] == k else 0
