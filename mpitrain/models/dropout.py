"""Dropout (Srivastava et al. 2014), scaled during training so that evaluation needs no scaling."""

import numpy as np

from mpitrain.flat import Array
from mpitrain.models.layer import Layer, Views


class Dropout(Layer):
    """In training, each unit of each example is set to 0 with probability `rate`, otherwise divided by 1 − rate.

    If ranks share a minibatch, `share` is (index of this rank's first example, size of the whole minibatch): each rank
    draws for the whole minibatch and keeps its own rows, so that the result is that of a single rank.
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
        # Not in place: the previous activation needs its own output for the backward pass.
        self.workspace.ops.dropout(x, y, self._scale, rng, self.rate, self.share)
        return y

    def backward(self, views: Views, gradients: Views, dy: Array, need_dx: bool = True) -> Array | None:
        return dy if self.rate == 0 else np.multiply(dy, self._scale, out=dy)
