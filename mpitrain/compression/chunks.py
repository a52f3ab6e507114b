"""The largest elements of every chunk, quantised by tensor (SparseLoCo: Sarfi et al. 2025, arXiv 2508.15706).

The quantiser follows a public implementation (CCLoco): a tensor's levels are equal ranges of up to three
standard deviations, and each stands for the mean of the elements in it. Here a level counts both signs, chunks are
neighbours in the flat vector, and a chunk cut short at the end of a tensor sends as large a share as a whole one.
"""

from collections.abc import Sequence
from math import isfinite

import numpy as np

from mpitrain.compression.compressor import Compressor
from mpitrain.compression.message import NO_STARTS
from mpitrain.compression.residual import NO_LEVELS, SIGN, Entries
from mpitrain.compression.thresholds import COUNT_MAX, UNQUANTISED, greatest_level, unit_quantum
from mpitrain.errors import TrainingFailed
from mpitrain.flat import BLOCK, Array, block_pairs, block_slices, fill, on_host, scratch_for

#: The range of sizes that a tensor's levels divide, in root mean squares of its elements sent.
RANGE = 3.0


class LargestOfChunks(Compressor):
    """The `top_k` largest of every `chunk` neighbours in each of the `tensors`, which together are the vector.

    An element's `bits` are its sign and the code of one of its tensor's levels; with 32 bits it is unquantised. A level
    is a multiple of what moves a weight by one unit, so that replicas can be integers.
    """

    def __init__(
        self, residual: Array, tensors: Sequence[slice], top_k: int, chunk: int, bits: int = 2, codec: str = "auto"
    ) -> None:
        starts = NO_STARTS if bits == UNQUANTISED else np.array([tensor.start for tensor in tensors])
        super().__init__(residual, bits, codec, starts)
        self._tensors, self._top_k, self._chunk = tensors, min(top_k, chunk), chunk
        self._scratch = scratch_for(residual)

    def begin(self, scale: float, rate: float, emit: bool) -> None:
        self._scale, self._emits = scale, emit
        self.threshold = unit_quantum(rate)

    def end(self, values: Array) -> Entries:
        total = 0.0
        for b, value in block_pairs(slice(0, values.size), values):
            part, scratch = self.residual[b], self._scratch[: len(value)]
            np.multiply(value, self._scale, out=scratch)
            np.add(part, scratch, out=part)
            total += float(np.abs(part, out=scratch).sum())
        if not isfinite(total):
            raise TrainingFailed("an element of the residual is not finite: training has diverged")
        residual = on_host(self.residual)
        chosen = self._largest(residual) if self._emits else np.empty(0, np.int64)
        signs = np.where(residual[chosen] < 0, SIGN, np.uint32(0))
        entries = self._quantised(chosen.astype(np.uint32) | signs, chosen, np.abs(residual[chosen]).astype(np.float64))
        residual[chosen] -= self.amounts(entries).astype(residual.dtype)
        if residual is not self.residual:
            fill(self.residual, residual)
        return entries

    @property
    def nothing(self) -> Entries:
        return self._quantised(np.empty(0, np.uint32), np.empty(0, np.int64), np.empty(0))

    def _quantised(self, words: Array, chosen: Array, sizes: Array) -> Entries:
        if self.bits == UNQUANTISED:
            return Entries(words, _whole(sizes / self.threshold))
        # The codes, from the size in root mean squares of the tensor's.
        codes, width = NO_LEVELS, greatest_level(self.bits)
        tensor = self.wire.places(chosen, codes) // width
        number = np.maximum(np.bincount(tensor, minlength=len(self._tensors)), 1)
        square = np.bincount(tensor, sizes**2, len(self._tensors)) / number
        if width > 1:
            codes = np.clip(np.ceil(sizes * width / (RANGE * np.sqrt(square)[tensor])), 1, width).astype(np.uint32)
        # Each level is the mean of the elements that have its code.
        places, most = self.wire.places(chosen, codes), len(self._tensors) * width
        means = np.bincount(places, sizes, most) / np.maximum(np.bincount(places, minlength=most), 1)
        tables = _whole(means / self.threshold)
        return Entries(words, tables[places], codes, tables)

    def _largest(self, residual: Array) -> Array:
        """The indices of the elements to send, ascending, without those nearer to zero than to one unit."""
        found, least = [], self.threshold / 2
        for tensor in self._tensors:
            rest = tensor.stop - (tensor.stop - tensor.start) % self._chunk
            for b in block_slices(slice(tensor.start, rest), max(BLOCK // self._chunk, 1) * self._chunk):
                found.append(_most(residual[b].reshape(-1, self._chunk), self._top_k, least) + b.start)
            if rest < tensor.stop:
                share = max(round(self._top_k * (tensor.stop - rest) / self._chunk), 1)
                found.append(_most(residual[None, rest : tensor.stop], share, least) + rest)
        return np.concatenate(found)


def _most(values: Array, count: int, least: float) -> Array:
    """The places, ascending, of the `count` largest elements of each row whose sizes are above `least`."""
    rows = np.abs(values)
    bounds = np.partition(rows, -count)[:, -count, None]
    chosen = (rows >= bounds) & (rows > least)
    if np.count_nonzero(chosen, axis=1).max() > count:  # some are as large as the last one: choose
        chosen[:] = False
        np.put_along_axis(chosen, np.argpartition(rows, -count)[:, -count:], True, 1)
        chosen &= rows > least
    return np.flatnonzero(chosen)


def _whole(levels: Array) -> Array:
    return np.clip(np.rint(levels), 1, COUNT_MAX).astype(np.uint32)
