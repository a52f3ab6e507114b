"""Max-pooling layer."""

import numpy as np

from mpitrain.flat import Array
from mpitrain.models.layer import DoesNotFit, Layer, Shape, Views


class MaxPool(Layer):
    """The maximum of each `size` × `size` window inside the image; windows are `stride` (default `size`) apart."""

    kind = "pool"

    def __init__(self, size: int, stride: int | None = None) -> None:
        super().__init__()
        self.size = size
        self.stride = stride or size

    def prepare(self, input_shape: Shape) -> Shape:
        self.require_image(input_shape)
        height, width, channels = input_shape
        if min(height, width) < self.size:
            why = f"windows of {self.size} do not fit {height} x {width} pixels"
            raise DoesNotFit(self.name, "size", why)
        return (height - self.size) // self.stride + 1, (width - self.size) // self.stride + 1, channels

    def forward(self, views: Views, x: Array, training: bool = False, rng: np.random.Generator | None = None) -> Array:
        y = self.buffer("y", (len(x), *self.output_shape), x)
        self._place = self.places(len(x))
        self.workspace.ops.max_pool(x, self.size, self.stride, y, self._place)
        return y

    def backward(self, views: Views, gradients: Views, dy: Array, need_dx: bool = True) -> Array | None:
        dx = self.buffer("dx", (len(dy), *self.input_shape), dy)
        self.workspace.ops.max_unpool(dy, self._place, self.size, self.stride, dx)
        return dx

    def places(self, n: int) -> Array:
        """The buffer [n, *output_shape] with the position of each maximum in its window."""
        return self.workspace.array(f"{self.name}.place", (n, *self.output_shape), place_type(self.size))


def place_type(size: int) -> np.dtype:
    """The type of a position in a window of side `size`: a byte where that is enough."""
    return np.dtype(np.uint8 if size <= 16 else np.int32)
