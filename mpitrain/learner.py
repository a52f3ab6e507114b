"""A rank's own computing: the samples of a minibatch, and the gradient of the loss on them."""

from collections.abc import Callable
from typing import Any

import numpy as np

from mpitrain.assignments import Work
from mpitrain.data.batch import Batch
from mpitrain.data.sampler import epoch_indices, independent_indices
from mpitrain.flat import Array, blocks
from mpitrain.streams import stream


class Learner:
    """Computes minibatch gradients of a network on a corpus.

    `per_sample`: gradients are sums over the minibatch, not means (training.rate_per). `independent`: the samples are
    drawn uniformly from the whole corpus (Chan & Lane 2014) instead of taken from the epoch's order.
    """

    def __init__(
        self, network: Any, corpus: Any, *, seed: int, dtype: str, per_sample: bool = False, independent: bool = False
    ) -> None:
        self.network, self.corpus = network, corpus
        self.seed, self.per_sample, self.independent = seed, per_sample, independent
        self._dtype = np.dtype(dtype)
        self._batch = Batch(np.empty((0, *corpus.shape), self._dtype), np.empty(0, np.int32))

    def indices(self, work: Work) -> Array:
        """The samples that a minibatch's positions name."""
        if self.independent:
            return independent_indices(self.seed, work.epoch, work.start, work.count, self.corpus.samples)
        return epoch_indices(self.seed, work.epoch, self.corpus.samples)[work.start : work.start + work.count]

    def gradient(self, theta: Array, out: Array, work: Work, on_ready: Callable[[slice], None] | None = None) -> float:
        """Write the gradient at `theta` into `out`; the minibatch's mean loss."""
        batch = self.load(work)
        rng = stream(self.seed, "dropout", work.epoch, work.start)
        if not self.per_sample:
            return float(self.network.loss_and_gradient(theta, out, batch, rng, on_ready))

        def sum_instead(part: slice) -> None:
            for block in blocks(part.stop - part.start):
                piece = out[part][block]
                np.multiply(piece, float(work.count), out=piece)
            if on_ready:
                on_ready(part)

        return float(self.network.loss_and_gradient(theta, out, batch, rng, sum_instead))

    def load(self, work: Work) -> Batch:
        """The minibatch, in buffers that the next call overwrites."""
        if len(self._batch.targets) < work.count:
            self._batch = Batch(np.empty((work.count, *self.corpus.shape), self._dtype), np.empty(work.count, np.int32))
        out = Batch(self._batch.inputs[: work.count], self._batch.targets[: work.count])
        self.corpus.gather(self.indices(work), out)
        return out
