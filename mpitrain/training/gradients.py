"""A rank's own computing: the samples of a minibatch, and the gradient of the loss on them."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from mpitrain.data.sampler import chunked_indices, epoch_indices, independent_indices
from mpitrain.data.sharing import ALONE, Orders, Sharing
from mpitrain.device.cpu import CPU, Cpu
from mpitrain.flat import Array, block_of, block_pairs, block_slices, share
from mpitrain.models.model import Consumer, Draws, Model, Ready
from mpitrain.monitoring.counters import RankFigures
from mpitrain.sampling.batch import Batch
from mpitrain.sampling.queue import Work
from mpitrain.sampling.rng import stream
from mpitrain.sampling.stages import Training
from mpitrain.start import DEADLINE
from mpitrain.stopwatch import Stopwatch


class Observed:
    """Measures the parts of a minibatch's mean gradient before `then` uses them."""

    def __init__(self, out: Array, then: Ready | None) -> None:
        self._out, self._then, self._nonzero = out, then, 0
        self._square = 0.0
        consumer = Consumer(out, self._use)
        # A plain function gets gradients in `out`, where a `then` that is no Consumer looks for them.
        self.on_ready: Ready = consumer if isinstance(then, Consumer) else consumer.__call__

    def give(self, figures: RankFigures) -> None:
        """Give the figures of the whole gradient."""
        if np.isfinite(self._square):  # another gradient is refused, or ends the training
            figures.give("gradient_norm", self._square**0.5)
        figures.give("gradient_zeros_mean", 1.0 - self._nonzero / self._out.size)

    def _use(self, part: slice, g: Array) -> None:
        self._nonzero += int(np.count_nonzero(g))
        self._square += float(np.dot(g, g))
        if isinstance(self._then, Consumer):
            self._then.use(part, g)
        elif self._then is not None:
            self._then(part)


def square(g: Array) -> float:
    """The square of a vector's norm."""
    return sum(float(np.dot(g[b], g[b])) for b in block_slices(slice(0, g.size), block_of(g)))


def clip(g: Array, most: float, unit: float = 1.0, of_whole: float | None = None) -> None:
    """Scale `g`, which is `unit` times a gradient, so that the gradient's norm is at most `most`, as
    torch.nn.utils.clip_grad_norm_ does; unless it is not finite. If `g` is only a part of `unit` times the gradient,
    `of_whole` is the square of the whole's norm."""
    norm = (square(g) if of_whole is None else of_whole) ** 0.5
    factor = most / (norm / unit + 1e-6)
    if 0 < factor < 1:
        np.multiply(g, factor, out=g)


def scaled(out: Array, scale: float, then: Ready | None, add: Array | None = None) -> Ready:
    """A function that scales the parts of a gradient in `out`, and adds those of `add`, before `then` uses them."""

    def ready(part: slice) -> None:
        for b in block_slices(part, block_of(out)):
            g = out[b]
            np.multiply(g, scale, out=g)  # the same object: else CuPy makes a copy first
            if add is not None:
                np.add(add[b], g, out=g)
        if then is not None:
            then(part)

    return ready


def added(total: Array, scale: float) -> Callable[[slice, Array], None]:
    """A function that scales the parts of a gradient, and adds them to `total`."""

    def use(part: slice, gradient: Array) -> None:
        for b, g in block_pairs(part, gradient):
            own = total[b]
            np.multiply(g, scale, out=g)
            np.add(own, g, out=own)

    return use


class Clipped:
    """Waits for all parts of a minibatch's mean gradient, and clips it before `then` uses it."""

    def __init__(self, out: Array, most: float, then: Ready | None) -> None:
        self._out, self._most, self._then, self._left = out, most, then, out.size

    def __call__(self, part: slice) -> None:
        self._left -= part.stop - part.start
        if self._left == 0:
            clip(self._out, self._most)
            if self._then is not None:
                self._then(slice(0, self._out.size))


def orders_of(seed: int, samples: int, chunked: tuple[int, int] | None = None, sharing: Sharing = ALONE) -> Orders:
    """The orders of a training, `chunked` or not. Collective over the processes that share them."""
    if chunked:
        loaders, chunk = chunked
        return Orders(samples, lambda epoch: chunked_indices(seed, epoch, samples, loaders, chunk), sharing)
    return Orders(samples, lambda epoch: epoch_indices(seed, epoch, samples), sharing)


class Learner:
    """Computes minibatch gradients of a network on a corpus, as the keys of [training] say.

    `per_sample`: gradients are sums over the minibatch, not means. `independent`: the samples are drawn uniformly and
    with replacement (Chan & Lane 2014, §4.1) instead of taken from the epoch's order. A corpus on disk is read ahead as
    far as `expect` has announced; a read may take `deadline` seconds. Minibatches, θ and gradients are on `device`, as
    the network is. `pace` passes the time that a simulated rank takes for samples. `figures` get those of the
    gradients. `orders` are by default those of the seed, not chunked.
    """

    def __init__(
        self,
        network: Model,
        corpus: Any,
        training: Training,
        *,
        independent: bool = False,
        device: Cpu = CPU,
        deadline: float = DEADLINE,
        pace: Callable[[int], None] | None = None,
        stopwatch: Stopwatch | None = None,
        figures: RankFigures | None = None,
        orders: Orders | None = None,
    ) -> None:
        self.network, self.corpus, self.device = network, corpus, device
        self._pace, self.stopwatch = pace, stopwatch or Stopwatch(lambda: 0.0)
        self._figures, self._parts, self.clip_norm = figures, training.accumulate, training.clip_norm
        self._sum: Array | None = None
        self.seed, self.per_sample, self.independent = training.seed, training.rate_per == "sample", independent
        self._orders = orders or orders_of(self.seed, corpus.samples)
        self.loader = device.open_loader(corpus, np.dtype(training.dtype), deadline)
        self._asked: deque[Work] = deque()
        self._expected: deque[Work] = deque()

    def indices(self, work: Work) -> Array:
        """The indices int64 [n] of a minibatch's samples in the corpus."""
        if self.independent:
            return independent_indices(self.seed, work.epoch, work.start, work.count, self.corpus.samples)
        return self._orders.part(work.epoch, work.start, work.count)

    def gradient(self, theta: Array, out: Array, work: Work, on_ready: Ready | None = None) -> float:
        """Write the gradient at `theta` into `out`; returns the minibatch's mean loss."""
        return self.scaled_gradient(theta, out, work, self.scale(work), on_ready)

    def scale(self, work: Work) -> float:
        """The factor by which the mean gradient of a minibatch is multiplied."""
        return float(work.count) if self.per_sample else 1.0

    def scaled_gradient(
        self,
        theta: Array,
        out: Array,
        work: Work,
        scale: float,
        on_ready: Ready | None = None,
        whole: Work | None = None,
    ) -> float:
        """Write `scale` times the mean gradient at `theta` into `out`; returns the minibatch's mean loss.

        `whole` is the minibatch that ranks share, where `work` is this rank's share of it: dropout is then what one
        rank would have drawn.
        """
        batch = self.load(work)
        first = whole or work
        ready = on_ready if scale == 1.0 else scaled(out, scale, on_ready)
        if self.clip_norm and whole is None:  # otherwise the caller, which sums the shares, clips
            ready = Clipped(out, self.clip_norm, ready)
        observed = Observed(out, ready) if self._figures is not None and scale else None
        ready = ready if observed is None else observed.on_ready
        place = None if whole is None else (work.start - whole.start, whole.count)
        with self.stopwatch.on("computing"):
            if self._parts > 1:
                loss: Any = self._in_parts(theta, out, batch, first, ready, place or (0, work.count))
            else:
                loss = self.network.loss_and_gradient(theta, out, batch, self._draws(first, place), ready)
            self.loader.stage()  # a GPU is still computing
            if self._figures is not None and observed is not None:
                observed.give(self._figures)
            return float(loss)

    def _in_parts(
        self, theta: Array, out: Array, batch: Batch, first: Work, on_ready: Ready | None, place: tuple[int, int]
    ) -> float:
        """Compute the mean gradient of a minibatch part by part, into `out`; returns the mean loss. `on_ready` is
        called during the last part of the minibatch."""
        count, loss = len(batch.targets), 0.0
        parts = min(self._parts, count)
        if self._sum is None:
            self._sum = np.empty_like(out)
        self._sum.fill(0)
        for number in range(parts):
            piece = share(count, number, parts)
            weight = (piece.stop - piece.start) / count
            last = number == parts - 1
            ready = scaled(out, weight, on_ready, self._sum) if last else Consumer(out, added(self._sum, weight))
            part = Batch(batch.inputs[piece], batch.targets[piece])
            draws = self._draws(first, (place[0] + piece.start, place[1]))
            loss += weight * float(self.network.loss_and_gradient(theta, out, part, draws, ready))
        return loss

    def _draws(self, first: Work, share: tuple[int, int] | None) -> Draws | None:
        """What dropout draws from for a `share` of the minibatch `first`."""
        if not self.network.drawing:
            return None
        return Draws(stream(self.seed, "dropout", first.epoch, first.start), share)

    def expect(self, works: Iterable[Work]) -> None:
        """Announce the next minibatches, in order, in place of those announced before that are not being read yet."""
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
