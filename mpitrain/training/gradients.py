"""A rank's own computing: the samples of a minibatch, and the gradient of the loss on them."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from mpitrain.data.sampler import chunked_indices, epoch_indices, independent_indices
from mpitrain.device.cpu import CPU, Cpu
from mpitrain.flat import Array, block_of, block_slices
from mpitrain.models.model import Consumer, Model, Ready
from mpitrain.monitoring.figures import RankFigures
from mpitrain.sampling.batch import Batch
from mpitrain.sampling.queue import Work
from mpitrain.sampling.rng import stream
from mpitrain.start import DEADLINE
from mpitrain.stopwatch import Stopwatch


class Observed:
    """Looks at the parts of a minibatch's mean gradient before `then` uses them."""

    def __init__(self, out: Array, then: Ready | None) -> None:
        self._out, self._then, self._nonzero = out, then, 0
        self._square = 0.0
        self.on_ready: Ready = Consumer(out, self._use) if isinstance(then, Consumer) else self._use_in_place

    def give(self, figures: RankFigures) -> None:
        """Give the figures of the whole gradient."""
        if np.isfinite(self._square):  # a gradient that is not is refused, or ends the training
            figures.give("gradient_norm", self._square**0.5)
        figures.give("gradient_zeros_mean", 1.0 - self._nonzero / self._out.size)

    def _use_in_place(self, part: slice) -> None:
        self._use(part, self._out[part])

    def _use(self, part: slice, g: Array) -> None:
        self._nonzero += int(np.count_nonzero(g))
        self._square += float(np.dot(g, g))
        if isinstance(self._then, Consumer):
            self._then.use(part, g)
        elif self._then is not None:
            self._then(part)


class Learner:
    """Computes minibatch gradients of a network on a corpus.

    `per_sample`: gradients are sums over the minibatch, not means (training.rate_per). `independent`: the samples are
    drawn uniformly and with replacement (Chan & Lane 2014, §4.1) instead of taken from the epoch's order; `chunked`:
    that order shuffles so many chunks of so many neighbours together (EASGD's prefetch). A corpus on
    disk is read ahead by as much as `expect` has announced; a read may take `deadline` seconds. Minibatches, θ and
    gradients lie on `device`, as the network does. `pace` lets the time pass that a simulated rank takes for so many
    samples. `figures` of the gradients are given if it is there.
    """

    def __init__(
        self,
        network: Model,
        corpus: Any,
        *,
        seed: int,
        dtype: str,
        per_sample: bool = False,
        independent: bool = False,
        chunked: tuple[int, int] | None = None,
        device: Cpu = CPU,
        deadline: float = DEADLINE,
        pace: Callable[[int], None] | None = None,
        stopwatch: Stopwatch | None = None,
        figures: RankFigures | None = None,
    ) -> None:
        self.network, self.corpus, self.device = network, corpus, device
        self._pace, self.stopwatch = pace, stopwatch or Stopwatch(lambda: 0.0)
        self._figures = figures
        self.seed, self.per_sample, self.independent, self.chunked = seed, per_sample, independent, chunked
        self.loader = device.open_loader(corpus, np.dtype(dtype), deadline)
        self._asked: deque[Work] = deque()
        self._expected: deque[Work] = deque()

    def indices(self, work: Work) -> Array:
        """The samples that a minibatch's positions name."""
        if self.independent:
            return independent_indices(self.seed, work.epoch, work.start, work.count, self.corpus.samples)
        seed, samples = self.seed, self.corpus.samples
        if self.chunked:
            order = chunked_indices(seed, work.epoch, samples, *self.chunked)
        else:
            order = epoch_indices(seed, work.epoch, samples)
        return order[work.start : work.start + work.count]

    def gradient(
        self,
        theta: Array,
        out: Array,
        work: Work,
        on_ready: Callable[[slice], None] | None = None,
        whole: Work | None = None,
    ) -> float:
        """Write the gradient at `theta` into `out`; the minibatch's mean loss. `whole`: see `scaled_gradient`."""
        return self.scaled_gradient(theta, out, work, self.scale(work), on_ready, whole)

    def scale(self, work: Work) -> float:
        """What the mean gradient of a minibatch is multiplied by."""
        return float(work.count) if self.per_sample else 1.0

    def scaled_gradient(
        self,
        theta: Array,
        out: Array,
        work: Work,
        scale: float,
        on_ready: Callable[[slice], None] | None = None,
        whole: Work | None = None,
    ) -> float:
        """Write `scale` times the mean gradient at `theta` into `out`; the minibatch's mean loss.

        `whole` is the minibatch that ranks share, where `work` is this rank's share of it: dropout is then what one
        rank would have drawn.
        """
        batch = self.load(work)
        first = whole or work
        rng = None if self.device.phantom else stream(self.seed, "dropout", first.epoch, first.start)
        ready = on_ready if scale == 1.0 else self._scaled(out, scale, on_ready)
        observed = Observed(out, ready) if self._figures is not None and scale else None
        ready = ready if observed is None else observed.on_ready
        share = None if whole is None else (work.start - whole.start, whole.count)
        with self.stopwatch.on("computing"):
            loss = self.network.loss_and_gradient(theta, out, batch, rng, ready, share=share)
            self.loader.stage()  # a GPU is still computing
            if self._figures is not None and observed is not None:
                observed.give(self._figures)
            return float(loss)

    def expect(self, works: Iterable[Work]) -> None:
        """The minibatches that come next, in order; what was announced before and has not been asked for is dropped."""
        self._expected = deque(works)
        self._ask()

    def load(self, work: Work) -> Batch:
        """The minibatch, in buffers that the next call overwrites."""
        with self.stopwatch.on("data"):
            while self._asked and self._asked[0] != work:
                self.loader.take()  # announced, and not used
                self._asked.popleft()
            if not self._asked:
                self._request(work)
            batch = self.loader.take()
            self._asked.popleft()
            if self._expected and self._expected[0] == work:
                self._expected.popleft()
            self._ask()
        if self._pace is not None:
            with self.stopwatch.on("computing"):
                self._pace(work.count)
        return batch

    def _ask(self) -> None:
        while self._expected and self.loader.room > 0:
            work = self._expected.popleft()
            if work not in self._asked:
                self._request(work)

    def _request(self, work: Work) -> None:
        self.loader.request(self.indices(work), (work.epoch, work.start))
        self._asked.append(work)

    @staticmethod
    def _scaled(out: Array, scale: float, on_ready: Callable[[slice], None] | None) -> Callable[[slice], None]:
        def ready(part: slice) -> None:
            for b in block_slices(part, block_of(out)):
                g = out[b]
                np.multiply(g, scale, out=g)  # the same object: else CuPy makes a copy first
            if on_ready:
                on_ready(part)

        return ready
