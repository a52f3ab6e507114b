"""Dropout (Srivastava et al. 2014), scaled while training so that evaluation needs no scale."""

import numpy as np

from mpitrain.flat import Array
from mpitrain.models.layer import Layer, Views


class Dropout(Layer):
    """While training each unit of each example is 0 with probability `rate`, else divided by 1 − rate."""

    kind = "dropout"

    def __init__(self, rate: float = 0.5) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, views: Views, x: Array, training: bool = False, rng: np.random.Generator | None = None) -> Array:
        if not training or self.rate == 0:
            return x
        if rng is None:
            raise ValueError("dropout needs a random stream while training")
        # Drawn in float32 whatever the run's dtype, so that runs of either dtype drop the same units.
        draws = self.workspace.array(f"{self.name}.draws", x.shape, np.dtype(np.float32))
        rng.random(dtype=np.float32, out=draws)
        self._scale = self.buffer("scale", x.shape, x)
        np.greater_equal(draws, self.rate, out=self._scale)
        np.multiply(self._scale, 1 / (1 - self.rate), out=self._scale)
        # Not in place: the activation before needs its own output to go backward.
        return np.multiply(x, self._scale, out=self.buffer("y", x.shape, x))

    def backward(self, views: Views, gradients: Views, dy: Array, need_dx: bool = True) -> Array | None:
        return dy if self.rate == 0 else np.multiply(dy, self._scale, out=dy)
