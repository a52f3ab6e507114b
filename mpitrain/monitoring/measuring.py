"""Measure a model's statistics of normalisation for given parameters, a slice of training data at a time."""

import numpy as np
from numpy.typing import DTypeLike

from mpitrain.batch import Batch, Samples
from mpitrain.device.cpu import CPU, Cpu
from mpitrain.flat import Array
from mpitrain.models.model import Buffered
from mpitrain.rng import stream

SAMPLES = 1024  # the same ones every time
SLICE = 32  # samples of a minibatch, whose moments are averaged


class Measuring:
    """Measures on a fixed choice of the samples of `corpus`, the training part, on the model's device."""

    def __init__(self, model: Buffered, corpus: Samples, seed: int, dtype: DTypeLike, device: Cpu = CPU) -> None:
        chosen = stream(seed, "statistics").permutation(corpus.samples)[:SAMPLES]
        self._model, self._corpus, self._device = model, corpus, device
        self._slices = [np.sort(part) for part in _slices(chosen)]
        self._batch = Batch(np.empty((SLICE + 1, *corpus.shape), dtype), np.empty(SLICE + 1, np.int32))
        self._done = 0

    @property
    def active(self) -> bool:
        """Whether slices are left to measure."""
        return self._done < len(self._slices)

    def begin(self, parameters: Array) -> None:
        """Start over, unless the statistics belong to these parameters already."""
        self._done = len(self._slices) if self._model.measured(parameters) else 0

    def step(self, parameters: Array) -> None:
        """Measure one slice."""
        part = self._slices[self._done]
        batch = self._corpus.gather(part, Batch(*(buffer[: len(part)] for buffer in self._batch)))
        inputs = self._device.to_device(batch.inputs)
        self._model.measure(parameters, inputs, self._done, len(self._slices))
        self._done += 1

    def run(self, parameters: Array) -> None:
        """All of it at once."""
        self.begin(parameters)
        while self.active:
            self.step(parameters)


def _slices(chosen: Array) -> list[Array]:
    """Slices of equal size; the last sample alone, which has no variance, joins the others."""
    parts = [chosen[start : start + SLICE] for start in range(0, len(chosen), SLICE)]
    if len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [np.concatenate(parts[-2:])]
    return parts
