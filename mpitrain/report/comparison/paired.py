"""The difference of two trainings on the same test samples, with a paired bootstrap.

Blocks of neighbouring samples are drawn anew, the same ones for both (Efron & Tibshirani, An Introduction to the
Bootstrap, 1993, §8.6 for blocks); where there are several seeds, each side's are drawn anew, too, and their deviations
from the mean multiplied by √(n/(n − 1)), as a sample of n varies less about its own mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mpitrain.flat import Array
from mpitrain.sampling.rng import stream

DRAWS, TOGETHER = 10_000, 500
COVERED = 95.0  # per cent of the draws


@dataclass(frozen=True)
class BlockSums:
    """The sums [blocks] of a figure of merit over the blocks of a test part, and their numbers of samples."""

    sums: Array
    samples: Array

    @property
    def mean(self) -> float:
        """The figure on the whole part."""
        return float(self.sums.sum() / self.samples.sum())


@dataclass(frozen=True)
class Difference:
    """`mean` is the other's figure minus the base's, `low` to `high` covers it; `relative` to the base's."""

    base: float
    mean: float
    low: float
    high: float

    @property
    def relative(self) -> tuple[float, float, float]:
        """The same three as shares of the base's figure."""
        return self.mean / self.base, self.low / self.base, self.high / self.base


def difference(base: Sequence[BlockSums], other: Sequence[BlockSums]) -> Difference:
    """Between the mean figures of the seeds of two trainings. Their blocks are the same."""
    rng, samples = stream(1, "bootstrap"), base[0].samples
    each = np.mean([run.sums for run in other], 0) - np.mean([run.sums for run in base], 0)
    drawn = np.empty(DRAWS)
    for start in range(0, DRAWS, TOGETHER):
        counts = rng.multinomial(len(each), np.full(len(each), 1 / len(each)), TOGETHER)
        drawn[start : start + TOGETHER] = counts @ each / (counts @ samples)
    drawn += _of_seeds(other, rng) - _of_seeds(base, rng)
    low, high = np.percentile(drawn, [50 - COVERED / 2, 50 + COVERED / 2])
    begun = float(np.mean([run.mean for run in base]))
    return Difference(begun, float(each.sum() / samples.sum()), float(low), float(high))


def _of_seeds(runs: Sequence[BlockSums], rng: np.random.Generator) -> Array:
    """How far the mean of seeds that are drawn anew lies from that of all: [DRAWS]."""
    n, means = len(runs), np.array([run.mean for run in runs])
    if n == 1:
        return np.zeros(DRAWS)
    drawn = (means - means.mean())[rng.integers(n, size=(DRAWS, n))].mean(1)
    return np.asarray(drawn * np.sqrt(n / (n - 1)))
