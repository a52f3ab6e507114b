"""Dropout (Srivastava et al. 2014), scaled while training so that evaluation needs no scale."""

import numpy as np

from mpitrain.flat import Array
from mpitrain.models.layer import Layer, Views


class Dropout(Layer):
    """While training each unit of each example is 0 with probability `rate`, else divided by 1 − rate.

    Of a minibatch that ranks share, `share` is (the place of this rank's first example, the count of the whole): each
    rank draws for the whole and keeps its own rows, and so drops what one rank would.
    """

    kind = "dropout"

    def __init__(self, rate: float = 0.5) -> None:
        super().__init__()
        self.rate = rate
        self.share: tuple[int, int] | None = None

    def forward(self, views: Views, x: Array, training: bool = False, rng: np.random.Generator | None = None) -> Array:
        if not training or self.rate == 0:
            return x
        if rng is None:
            raise ValueError("dropout needs a random stream while training")
        self._scale, y = self.buffer("scale", x.shape, x), self.buffer("y", x.shape, x)
        # Not in place: the activation before needs its own output to go backward.
        self.workspace.ops.dropout(x, y, self._scale, rng, self.rate, self.share)
        return y

    def backward(self, views: Views, gradients: Views, dy: Array, need_dx: bool = True) -> Array | None:
        return dy if self.rate == 0 else np.multiply(dy, self._scale, out=dy)
