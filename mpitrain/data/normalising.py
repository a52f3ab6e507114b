"""Normalise features and pixels by the mean and standard deviation of the corpus, a speaker or an utterance."""

from collections.abc import Iterable

import numpy as np
from numba import njit

from mpitrain.data.validation import Attributes
from mpitrain.errors import BadInput
from mpitrain.flat import Array

LEAST = 1e-8  # smallest variance, so that a constant feature does not cause a division by zero


class FrameNormaliser:
    """Normalises frames in place by their group. `groups` [utterances]: the group of each utterance; `offsets`: where
    utterances begin.

    `mean` and `scale` float32 [groups, dims]; `scale` is 1 ÷ standard deviation.
    """

    def __init__(self, offsets: Array, groups: Array, mean: Array, scale: Array) -> None:
        self._offsets, self._groups = offsets, groups
        self.mean, self.scale = np.ascontiguousarray(mean, np.float32), np.ascontiguousarray(scale, np.float32)

    @classmethod
    def measured(
        cls, pieces: Iterable[tuple[int, Array]], offsets: Array, groups: Array, dims: int
    ) -> "FrameNormaliser":
        """A normaliser by the groups' own statistics, over all frames in `pieces`: (number of the first frame,
        rows)."""
        count = int(groups.max()) + 1
        frames = np.bincount(groups, np.diff(offsets), count)[:, None]
        sums, squares = np.zeros((count, dims)), np.zeros((count, dims))
        for first, rows in pieces:
            _add_moments(rows, first, offsets, groups, sums, squares)
        mean = sums / frames
        return cls(offsets, groups, mean, 1 / np.sqrt(np.maximum(squares / frames - mean * mean, LEAST)))

    def apply(self, rows: Array, first: int) -> None:
        """Normalise rows [n, dims], which begin at frame `first` of the corpus."""
        _normalise(rows, first, self._offsets, self._groups, self.mean, self.scale)


def stored(attributes: Attributes, channels: int, dtype: np.dtype | type) -> tuple[Array, Array]:
    """Mean and 1 ÷ standard deviation of each channel as stored in a shard; 0 and 1 if there are none."""
    mean = np.broadcast_to(attributes.get("mean", 0.0), channels)
    std = np.broadcast_to(attributes.get("standard_deviation", 1.0), channels)
    return mean.astype(dtype), (1.0 / std.astype(np.float64)).astype(dtype)


def of_pixels(how: str, attributes: Attributes, channels: int, dtype: np.dtype | type) -> tuple[Array, Array]:
    """Mean and scale [channels] of images. Raises BadInput naming data.normalise if its value applies only to
    frames."""
    if how in ("speaker", "utterance"):
        raise BadInput(f"data.normalise = {how}: images have none; corpus, unit or none")
    if how == "corpus":
        return stored(attributes, channels, dtype)
    return np.zeros(channels, dtype), np.full(channels, 1 / 255 if how == "unit" else 1.0, dtype)


@njit(cache=True, nogil=True)
def _add_moments(rows: Array, first: int, offsets: Array, groups: Array, sums: Array, squares: Array) -> None:
    utterance = np.searchsorted(offsets, first, "right") - 1
    for row in range(len(rows)):
        while offsets[utterance + 1] <= first + row:
            utterance += 1
        group = groups[utterance]
        for d in range(rows.shape[1]):
            value = np.float64(rows[row, d])
            sums[group, d] += value
            squares[group, d] += value * value


@njit(cache=True, nogil=True)
def _normalise(rows: Array, first: int, offsets: Array, groups: Array, mean: Array, scale: Array) -> None:
    utterance = np.searchsorted(offsets, first, "right") - 1
    for row in range(len(rows)):
        while offsets[utterance + 1] <= first + row:
            utterance += 1
        group = groups[utterance]
        for d in range(rows.shape[1]):
            rows[row, d] = (rows[row, d] - mean[group, d]) * scale[group, d]
