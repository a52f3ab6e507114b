"""Minibatches, the form of samples, and the interface of a corpus that they are gathered from."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import DTypeLike

from mpitrain.flat import Array

Place = tuple[int, int] | None  #: epoch of a minibatch's first sample and its position in the order; None in evaluation


class Batch(NamedTuple):
    """`inputs` [n, *shape] in the run's dtype, `targets` int32 [n]; for tokens, both int32 [n, window]; for data of the
    user's own, as their `SampleForm` says."""

    inputs: Array
    targets: Array

    def first(self, count: int) -> "Batch":
        """The memory of the first `count` samples."""
        return Batch(self.inputs[:count], self.targets[:count])


class SampleForm(NamedTuple):
    """The form of samples: the `shape` of an input and that of its `targets`, () for one class; `dtype` and
    `target_dtype` are int32, or None for the run's; `bytes` of text that a target stands for on average, 0 if unknown;
    `pixels`: inputs are images [h, w, c], which modules of PyTorch's get as [c, h, w]."""

    shape: tuple[int, ...]
    targets: tuple[int, ...] = ()
    dtype: type | None = None
    bytes: float = 0.0
    target_dtype: type | None = np.int32
    pixels: bool = False

    def room(self, count: int, dtype: DTypeLike, empty: Callable[..., Any] = np.empty) -> Batch:
        """The memory of a minibatch of this many samples in a run of this dtype, allocated by `empty`."""
        inputs = empty((count, *self.shape), np.dtype(self.dtype or dtype))
        return Batch(inputs, empty((count, *self.targets), np.dtype(self.target_dtype or dtype)))

    def drawn(self, count: int, dtype: DTypeLike, classes: int, draw: np.random.Generator) -> Batch:
        """Samples to try a model with: floats are drawn; integer inputs are 0, a token that every vocabulary has."""
        batch = self.room(count, dtype, np.zeros)
        if self.dtype is None:
            batch.inputs[...] = draw.standard_normal(batch.inputs.shape)
        if self.target_dtype is None:
            batch.targets[...] = draw.random(batch.targets.shape)  # in [0, 1), which losses of probabilities take, too
        elif classes:
            batch.targets.T[...] = np.arange(count) % classes
        return batch


class Samples(Protocol):
    """A corpus or a selection of its samples, which are of this `form`, with targets in range(`classes`)."""

    part: str
    samples: int
    form: SampleForm
    classes: int
    in_memory: bool

    def gather(self, indices: Array, out: Batch, place: Place = None) -> Batch:
        """Fill `out`, the memory of as many samples, with the samples of `indices` int64 [n], in that order."""
