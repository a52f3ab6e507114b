"""The functions of layers on the GPU, and the update rules as one kernel each."""

from collections.abc import Callable
from typing import Any

import numpy as np

from mpitrain.algorithms import averaging
from mpitrain.algorithms.optimizers import adamw, sgd
from mpitrain.compression.residual import INDEX, NO_LEVELS
from mpitrain.device.products import Products
from mpitrain.errors import TrainingFailed
from mpitrain.flat import Array
from mpitrain.kernels.launch import Kernels
from mpitrain.models.patches import PatchProduct

NONE = 0xFFFFFFFF  # reported instead of the index of the first bad element if there is none


class Operations(Kernels):
    """The kernels, matrix products with cuBLAS, and the two kernels that report to the host.

    `fused` maps a rule of optimizers and algorithms to a single kernel that gives the same bits. `convolution` exists
    only with cuDNN.
    """

    convolution: Callable[..., PatchProduct]

    def __init__(self, cupy: Any, matmul: str) -> None:
        super().__init__(cupy)
        self._cupy = cupy
        self.matmul = Products(cupy, matmul)
        self._entries = [cupy.empty(0, np.uint32)] * 2  # words and levels
        self._report = cupy.empty(2, np.uint32)
        self.fused: dict[Callable[..., Any], Callable[..., Any]] = {
            sgd.sgd: _without_scratch(self.sgd),
            sgd.classical: _without_scratch(self.classical),
            sgd.krizhevsky: _without_scratch(self.krizhevsky),
            sgd.look_ahead: self.look_ahead,
            adamw.adamw: _without_scratch(self.adamw),
            sgd.mdownpour: _without_scratch(self.mdownpour),
            averaging.moving_average: _without_scratch(self.moving_average),
        }

    def emit(
        self, residual: Array, gradient: Array, words: Array, *, levels: Array = NO_LEVELS, first: int = 0, **how: Any
    ) -> int:
        """Like compression.residual.accumulate; `words` and `levels` are in host memory, and only those emitted
        are copied."""
        words_here, levels_here = self._room(words.size, levels.size)
        self.accumulate(residual, gradient, words_here, self._report, levels_here if levels.size else None, **how)
        count, bad = (int(number) for number in self._report.get())
        if bad != NONE:
            raise TrainingFailed(f"element {first + bad} of the residual is not finite: training has diverged")
        for here, there in ((words_here, words), (levels_here, levels)):
            if here[:count].size:
                here[:count].get(out=there[:count])
        words[:count] += np.uint32(first)
        return count

    def apply_words(self, words: Array, step: int, counts: Array, weights: Array, levels: Array = NO_LEVELS) -> None:
        """Like compression.replica.apply; `words` and `levels` are in host memory."""
        if counts.shape != weights.shape or (words.size and words[-1] & INDEX >= counts.size):
            raise ValueError(f"words up to {words[-1:] & INDEX} for counts {counts.shape} and weights {weights.shape}")
        if not words.size:
            return
        words_here, levels_here = (here[: words.size] for here in self._room(counts.size, levels.size and counts.size))
        words_here.set(np.ascontiguousarray(words))
        if levels.size:
            levels_here.set(np.ascontiguousarray(levels))
        failed = self._report[:1]
        failed.fill(NONE)
        self.apply(words_here, step, counts, weights, failed, levels_here if levels.size else None)
        first = int(failed.get()[0])
        if first != NONE:
            raise TrainingFailed(f"weight {first} would leave ±32, the range of integer weights")

    def _room(self, *sizes: int) -> list[Array]:
        """Device memory for as many words, and levels."""
        for number, size in enumerate(sizes):
            if self._entries[number].size < size:
                self._entries[number] = self._cupy.empty(size, np.uint32)
        return [memory[:size] for memory, size in zip(self._entries, sizes, strict=True)]


def _without_scratch(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel with a rule's signature, without the last argument, scratch, which it does not need."""

    def rule(*arrays: Array, **scalars: float) -> None:
        kernel(*arrays[:-1], **scalars)

    return rule
