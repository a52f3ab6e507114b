"""Loss and error on the held-out parts, in slices short enough that a server can answer between them."""

from collections.abc import Callable
from typing import Any

import numpy as np

from mpitrain.data.batch import Batch
from mpitrain.flat import Array
from mpitrain.streams import stream

SLICE = 4e-3  # seconds that one slice should take
MOST = 1024  # samples of one slice


class Subset:
    """A fixed choice of a corpus's samples, as a corpus: on it the training loss is taken."""

    def __init__(self, corpus: Any, samples: int, seed: int) -> None:
        chosen = stream(seed, "subset").permutation(corpus.samples)[:samples]
        self._corpus, self._chosen = corpus, np.sort(chosen)
        self.samples, self.shape, self.classes = len(chosen), corpus.shape, corpus.classes
        self.in_memory = corpus.in_memory

    def gather(self, indices: Array, out: Batch) -> Batch:
        """Fill `out` with these samples of the choice, as they are for an evaluation."""
        return self._corpus.gather(self._chosen[indices], out)


def errors(results: dict[str, Any]) -> dict[str, float]:
    """The errors by part, for a reader: "test", "dev", …; the unnamed test is left out where named ones stand."""
    named = {
        key.removesuffix("_error").replace("_", " "): value for key, value in results.items() if key.endswith("_error")
    }
    several = any(name.startswith("test ") for name in named)
    return {name: value for name, value in named.items() if value is not None and not (several and name == "test")}


class Evaluation:
    """Evaluates a copy of the parameters on corpora named "test", "dev", "test-noisy", …

    Results are `dev_loss` (mean), `dev_error` (share of wrong), `test_noisy_loss` and so on; `test_loss` and
    `test_error` are of the first test part.
    """

    def __init__(
        self, network: Any, corpora: dict[str, Any], dtype: np.dtype, clock: Callable[[], float], slices: bool = True
    ) -> None:
        self._network, self._corpora, self._clock, self._slices = network, corpora, clock, slices
        self._parameters = np.empty(network.layout.size, dtype)
        self._batches = {
            name: Batch(np.empty((MOST, *corpus.shape), dtype), np.empty(MOST, np.int32))
            for name, corpus in corpora.items()
        }
        self._size = 32 if slices else 256
        self._left: list[str] = []

    @property
    def active(self) -> bool:
        """Whether an evaluation has begun and not ended."""
        return bool(self._left)

    def begin(self, parameters: Array) -> None:
        """Start over with a copy of these parameters."""
        np.copyto(self._parameters, parameters)
        self._left, self._done = list(self._corpora), 0
        self._loss, self._wrong, self._results = 0.0, 0, dict[str, float]()

    def step(self) -> dict[str, float] | None:
        """Evaluate one slice; the results once all parts are done."""
        began = self._clock()
        name = self._left[0]
        corpus = self._corpora[name]
        count = min(self._size, corpus.samples - self._done)
        batch = Batch(*(buffer[:count] for buffer in self._batches[name]))
        corpus.gather(np.arange(self._done, self._done + count), batch)
        loss, wrong = self._network.evaluate(self._parameters, batch)
        self._loss, self._wrong, self._done = self._loss + loss, self._wrong + wrong, self._done + count
        self._adapt(self._clock() - began)
        return self._finish(name, corpus.samples) if self._done == corpus.samples else None

    def run(self, parameters: Array) -> dict[str, float]:
        """All of it at once."""
        self.begin(parameters)
        results = None
        while self.active:
            results = self.step()
        return results or {}

    def _finish(self, name: str, samples: int) -> dict[str, float] | None:
        key = name.replace("-", "_")
        self._results[f"{key}_loss"] = self._loss / samples
        self._results[f"{key}_error"] = self._wrong / samples
        if key.startswith("test"):
            self._results.setdefault("test_loss", self._loss / samples)
            self._results.setdefault("test_error", self._wrong / samples)
        self._left.pop(0)
        self._done, self._loss, self._wrong = 0, 0.0, 0
        return None if self._left else self._results

    def _adapt(self, seconds: float) -> None:
        if self._slices:
            wanted = self._size * SLICE / max(seconds, 1e-6)
            self._size = int(min(max(wanted, 1, self._size / 2), 2 * self._size, MOST))
