"""Local response normalisation across channels (Krizhevsky et al. 2012, §3.3)."""

import numpy as np

from mpitrain.flat import Array
from mpitrain.models.layer import Layer, Views


class LocalResponseNorm(Layer):
    """y_c = x_c / d_c^power, where d_c = offset + scale·Σ x² over the `size` channels around c. `size` is odd.

    `scale` multiplies the sum, as in the paper, not the mean over the window, as in programs that divide it by `size`.
    """

    kind = "norm"

    def __init__(self, size: int = 5, scale: float = 1e-4, power: float = 0.75, offset: float = 2.0) -> None:
        super().__init__()
        self.half = size // 2
        self.scale, self.power, self.offset = scale, power, offset

    def forward(self, views: Views, x: Array, training: bool = False, rng: np.random.Generator | None = None) -> Array:
        self._x = x
        y, d = self.buffer("y", x.shape, x), self.buffer("d", x.shape, x)
        np.square(x, out=y)
        self.workspace.ops.channel_window_sum(y, self.half, d)
        np.multiply(d, self.scale, out=d)
        np.add(d, self.offset, out=d)
        self._d, self._factor = d, self._power(d)
        self._y = np.multiply(x, self._factor, out=y)
        return y

    def backward(self, views: Views, gradients: Views, dy: Array, need_dx: bool = True) -> Array | None:
        """dx_c = dy_c·d_c^−power − 2·scale·power·x_c·Σ dy·y/d over the window, which is its own adjoint."""
        ratio, sums = self._d, self._y
        np.divide(self._y, self._d, out=ratio)
        np.multiply(ratio, dy, out=ratio)
        self.workspace.ops.channel_window_sum(ratio, self.half, sums)
        np.multiply(sums, self._x, out=sums)
        np.multiply(dy, self._factor, out=dy)
        self.workspace.ops.add_scaled(dy, sums, -2 * self.scale * self.power)
        return dy

    def _power(self, d: Array) -> Array:
        """d^−power by way of the vectorised logarithm and exponential."""
        factor = np.log(d, out=self.buffer("factor", d.shape, d))
        np.multiply(factor, -self.power, out=factor)
        return np.exp(factor, out=factor)
