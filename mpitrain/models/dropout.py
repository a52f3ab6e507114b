"""Dropout (Hinton et al. 2012; Srivastava et al. 2014)."""

import numpy as np

from mpitrain.flat import Array
from mpitrain.models.layer import Layer, Views
from mpitrain.models.table import Scaled


class Dropout(Layer):
    """In training, each unit of each example is set to 0 with probability `rate`, otherwise divided by 1 − rate.

    If it is `scaled` in evaluation, it is left as it is in training, and multiplied by 1 − rate in evaluation.

    If ranks share a minibatch, `share` is (index of this rank's first example, size of the whole minibatch): each rank
    draws for the whole minibatch and keeps its own rows, so that the result is that of a single rank.
    """

    kind = "dropout"

    def __init__(self, rate: float = 0.5, scaled: Scaled = "training") -> None:
        super().__init__()
        self.rate, self.scaled = rate, scaled
        #: What the units are multiplied by that are kept in training, and all units in evaluation.
        self.kept, self.evaluated = (1 / (1 - rate), 1.0) if scaled == "training" else (1.0, 1 - rate)
        self.share: tuple[int, int] | None = None

    def forward(self, views: Views, x: Array, training: bool = False, rng: np.random.Generator | None = None) -> Array:
        if self.rate == 0 or (not training and self.evaluated == 1):
            return x
        if not training:
            return np.multiply(x, self.evaluated, out=self.buffer("y", x.shape, x))
        if rng is None:
            raise ValueError("dropout needs a random stream while training")
        self._scale, y = self.buffer("scale", x.shape, x), self.buffer("y", x.shape, x)
        # Not in place: the previous activation needs its own output for the backward pass.
        self.workspace.ops.dropout(x, y, self._scale, rng, self.rate, self.kept, self.share)
        return y

    def backward(self, views: Views, gradients: Views, dy: Array, need_dx: bool = True) -> Array | None:
        return dy if self.rate == 0 else np.multiply(dy, self._scale, out=dy)
