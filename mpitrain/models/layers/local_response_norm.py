"""Local response normalisation across channels (Krizhevsky et al. 2012, §3.3)."""

from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np
from numba import njit

from mpitrain.flat import Array
from mpitrain.keys import NotNegative
from mpitrain.models.layer import DoesNotFit, Draws, Layer, LayerOptions, OnnxNode, Pixels, Shape, Tensor, Views
from mpitrain.models.workspace import add_scaled


class LocalResponseNormOptions(LayerOptions, frozen=True, tag_field="kind", tag="local-response-norm"):
    """x / (offset + scale·Σ x²)^power, the sum over the `size` channels around each (Krizhevsky et al. 2012, §3.3).

    `scale` multiplies the sum, not the mean.
    """

    size: Pixels = 5
    scale: NotNegative = 1e-4
    power: NotNegative = 0.75
    offset: NotNegative = 2.0

    def __post_init__(self) -> None:
        if self.size % 2 == 0:
            raise ValueError(f"size = {self.size} is even: a window has one channel in its middle")


class LocalResponseNorm(Layer, options=LocalResponseNormOptions):
    """y_c = x_c / d_c^power, where d_c = offset + scale·Σ x² over the `size` channels around c.

    `scale` multiplies the sum over the window, as in the paper, not the mean, as in programs that divide by `size`.
    """

    kind, images, onnx_channels_first = "norm", True, True

    def __init__(self, options: LocalResponseNormOptions) -> None:
        super().__init__(options)
        self._window: dict[str, Any] = {"half": options.size // 2, "scale": options.scale, "power": options.power}
        self._alpha = float(options.scale * options.size)  # for PyTorch and ONNX, which divide it by the size

    def prepare(self, input_shape: Shape) -> Shape:
        most: int = getattr(self.workspace.kernels, "LRN_HALF_MAX", input_shape[2])
        if min(self.options.size // 2, input_shape[2] - 1) > most:
            raise DoesNotFit(self, "size", f"a window has at most {2 * most + 1} channels on this device")
        return input_shape

    def forward(self, views: Views, x: Array, training: bool = False, draws: Draws | None = None) -> Array:
        self._x, self._d = x, self.buffer("d", x.shape, x)
        y = self.buffer("y", x.shape, x)
        self.workspace.kernel(lrn_forward)(x, y, self._d, **self._window, offset=self.options.offset)
        return y

    def backward(self, views: Views, gradients: Views, dy: Array, need_dx: bool = True) -> Array | None:
        dx = self.buffer("dx", dy.shape, dy)
        self.workspace.kernel(lrn_backward)(self._x, self._d, dy, dx, **self._window)
        return dx

    def torch(self, torch: ModuleType, x: Tensor, own: Mapping[str, Tensor], training: bool) -> Tensor:
        o = self.options
        return torch.nn.functional.local_response_norm(x, o.size, self._alpha, o.power, o.offset)

    def onnx(self, views: Views) -> list[OnnxNode]:
        o = self.options
        return [OnnxNode("LRN", {}, {"size": o.size, "alpha": self._alpha, "beta": o.power, "bias": o.offset})]


@njit(cache=True, nogil=True)
def channel_window_sum(x: Array, half: int, out: Array) -> None:
    """out[..., c] = Σ x[..., c'] over |c' − c| ≤ half, with channels outside counting as 0."""
    channels = x.shape[-1]
    rows, sums = x.reshape(-1, channels), out.reshape(-1, channels)
    for i in range(rows.shape[0]):
        row, total = rows[i], sums[i]
        for c in range(channels):
            total[c] = row[c]
        for distance in range(1, min(half, channels - 1) + 1):
            above, far = row[distance:], total[distance:]
            for c in range(channels - distance):
                total[c] += above[c]
            for c in range(channels - distance):
                far[c] += row[c]


def lrn_forward(x: Array, y: Array, d: Array, *, half: int, scale: float, power: float, offset: float) -> None:
    """Fill y and d, both of x's shape; d is for `lrn_backward`."""
    np.square(x, out=y)
    channel_window_sum(y, half, d)
    np.multiply(d, scale, out=d)
    np.add(d, offset, out=d)
    _divide(x, d, power, y)


def lrn_backward(x: Array, d: Array, dy: Array, dx: Array, *, half: int, scale: float, power: float) -> None:
    """dx_c = dy_c·d_c^−power − 2·scale·power·x_c·Σ dy·y/d over the window, which is its own adjoint. Overwrites dy,
    d."""
    _divide(dy, d, power, dx)
    np.divide(dx, d, out=d)
    np.multiply(d, x, out=d)  # dy·y/d
    channel_window_sum(d, half, dy)
    np.multiply(dy, x, out=dy)
    add_scaled(dx, dy, -2 * scale * power)


def _divide(x: Array, d: Array, power: float, out: Array) -> None:
    """out ← x·d^−power: with square roots in one pass for the paper's power, else with logarithm and exponential."""
    if power == 0.75:
        _divide_by_three_quarters(x.reshape(-1), d.reshape(-1), out.reshape(-1))
        return
    np.log(d, out=out)
    np.multiply(out, -power, out=out)
    np.exp(out, out=out)
    np.multiply(out, x, out=out)


@njit(cache=True, nogil=True, error_model="numpy")
def _divide_by_three_quarters(x: Array, d: Array, out: Array) -> None:
    """out ← x / d^(3/4). A division by 0 gives inf or nan, as in NumPy."""
    for i in range(d.size):
        root = np.sqrt(d[i])
        out[i] = x[i] / (root * np.sqrt(root))
