"""Local response normalisation across channels (Krizhevsky et al. 2012, §3.3)."""

import numpy as np

from mpitrain.flat import Array
from mpitrain.models.layer import DoesNotFit, Layer, Shape, Views


class LocalResponseNorm(Layer):
    """y_c = x_c / d_c^power, where d_c = offset + scale·Σ x² over the `size` channels around c. `size` is odd.

    `scale` multiplies the sum over the window, as in the paper, not the mean, as in programs that divide by `size`.
    """

    kind = "norm"

    def __init__(self, size: int = 5, scale: float = 1e-4, power: float = 0.75, offset: float = 2.0) -> None:
        super().__init__()
        self.half = size // 2
        self.scale, self.power, self.offset = scale, power, offset

    def prepare(self, input_shape: Shape) -> Shape:
        self.require_image(input_shape)
        most = self.workspace.ops.LRN_HALF_MAX
        if min(self.half, input_shape[2] - 1) > most:
            raise DoesNotFit(self.name, "size", f"a window has at most {2 * most + 1} channels on this device")
        return input_shape

    def forward(self, views: Views, x: Array, training: bool = False, rng: np.random.Generator | None = None) -> Array:
        self._x, self._d = x, self.buffer("d", x.shape, x)
        y, scale = self.buffer("y", x.shape, x), self.scale
        self.workspace.ops.lrn_forward(x, y, self._d, half=self.half, scale=scale, power=self.power, offset=self.offset)
        return y

    def backward(self, views: Views, gradients: Views, dy: Array, need_dx: bool = True) -> Array | None:
        dx = self.buffer("dx", dy.shape, dy)
        self.workspace.ops.lrn_backward(self._x, self._d, dy, dx, half=self.half, scale=self.scale, power=self.power)
        return dx
