"""Loss and error on the held-out parts, in slices short enough that a server can answer between them."""

from collections.abc import Callable
from math import log2
from typing import Any

import numpy as np

from mpitrain.data.batch import Batch
from mpitrain.device.cpu import CPU, Cpu
from mpitrain.flat import Array, on_host
from mpitrain.models.model import Model
from mpitrain.rng import stream

SLICE = 4e-3  # seconds that one slice should take
MOST = 1024  # samples of one slice
TOGETHER = 256  # samples where nobody waits for a slice's end


class Subset:
    """A fixed choice of a corpus's samples, as a corpus: on it the training loss is taken."""

    def __init__(self, corpus: Any, samples: int, seed: int) -> None:
        chosen = stream(seed, "subset").permutation(corpus.samples)[:samples]
        self._corpus, self._chosen = corpus, np.sort(chosen)
        self.samples, self.shape, self.classes = len(chosen), corpus.shape, corpus.classes
        self.in_memory = corpus.in_memory

    def gather(self, indices: Array, out: Batch, place: Any = None) -> Batch:
        """Fill `out` with these samples of the choice, as they are for an evaluation, wherever a loader has them."""
        return self._corpus.gather(self._chosen[indices], out)


class Share:
    """A rank's share of a corpus's samples, neighbours all, as a corpus; empty where there are more ranks."""

    def __init__(self, corpus: Any, rank: int, ranks: int) -> None:
        self._corpus, self._first = corpus, rank * corpus.samples // ranks
        self.samples = (rank + 1) * corpus.samples // ranks - self._first
        self.shape, self.classes, self.in_memory = corpus.shape, corpus.classes, corpus.in_memory

    def gather(self, indices: Array, out: Batch) -> Batch:
        """Fill `out` (inputs [n, *shape], targets [n]) with these samples of the share."""
        return self._corpus.gather(indices + self._first, out)


class Evaluation:
    """Evaluates a copy of the parameters on corpora named "test", "dev", "test-noisy", …, all of one shape.

    Results are `dev_loss` (mean), `dev_error` (share of wrong), `test_noisy_loss` and so on; `test_loss` and
    `test_error` are of the first test part. Where ranks share the samples, `total` sums [loss, wrong, samples] over
    them, in place.
    """

    def __init__(
        self,
        network: Model,
        corpora: dict[str, Any],
        dtype: np.dtype,
        clock: Callable[[], float],
        slices: bool = True,
        total: Callable[[Array], None] = lambda sums: None,
        device: Cpu = CPU,
    ) -> None:
        self._network, self._corpora, self._clock, self._slices = network, corpora, clock, slices
        self._total = total
        self._device, self._parameters = device, device.to_device(np.empty(network.layout.size, dtype))
        most, shape = MOST if slices else TOGETHER, next(iter(corpora.values())).shape
        self._batch = Batch(np.empty((most, *shape), dtype), np.empty(most, np.int32))
        self._size = 32 if slices else TOGETHER
        self._left: list[str] = []

    @property
    def active(self) -> bool:
        """Whether an evaluation has begun and not ended."""
        return bool(self._left)

    @property
    def parameters(self) -> Array:
        """The copy that is, or was last, evaluated."""
        return self._parameters

    def is_of(self, parameters: Array) -> bool:
        """Whether the copy is of these very parameters."""
        return bool(np.array_equal(on_host(self._parameters), on_host(parameters)))

    def begin(self, parameters: Array) -> None:
        """Start over with a copy of these parameters."""
        if type(parameters) is type(self._parameters):
            np.copyto(self._parameters, parameters)
        else:
            self._device.upload(self._parameters, on_host(parameters))
        self._left, self._done = list(self._corpora), 0
        self._loss, self._wrong, self._results = 0.0, 0, dict[str, float]()

    def step(self) -> dict[str, float] | None:
        """Evaluate one slice; the results once all parts are done."""
        began = self._clock()
        name = self._left[0]
        corpus = self._corpora[name]
        count = min(self._size, corpus.samples - self._done)
        if count:
            batch = Batch(*(buffer[:count] for buffer in self._batch))
            corpus.gather(np.arange(self._done, self._done + count), batch)
            loss, wrong = self._network.evaluate(self._parameters, Batch(*map(self._device.to_device, batch)))
            self._loss, self._wrong, self._done = self._loss + loss, self._wrong + wrong, self._done + count
            self._adapt(self._clock() - began)
        return self._finish(name) if self._done == corpus.samples else None

    def run(self, parameters: Array) -> dict[str, float]:
        """All of it at once."""
        self.begin(parameters)
        results = None
        while self.active:
            results = self.step()
        return results or {}

    def _finish(self, name: str) -> dict[str, float] | None:
        key, sums = name.replace("-", "_"), np.array([self._loss, self._wrong, self._done], np.float64)
        self._total(sums)
        loss, error = map(float, sums[:2] / sums[2])
        self._results |= {f"{key}_loss": loss, f"{key}_error": error}
        if key.startswith("test"):
            self._results.setdefault("test_loss", loss)
            self._results.setdefault("test_error", error)
        self._left.pop(0)
        self._done, self._loss, self._wrong = 0, 0.0, 0
        return None if self._left else self._results

    def _adapt(self, seconds: float) -> None:
        if self._slices:
            wanted = self._size * SLICE / max(seconds, 1e-6)
            wanted = min(max(wanted, 1, self._size / 2), 2 * self._size, MOST)
            self._size = 1 << int(log2(wanted))  # few sizes: cuDNN makes a plan for each
