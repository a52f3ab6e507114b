"""Frames, such as acoustic features: samples are windows of them, cut on the fly, never across utterances.

They are normalised when they are read, by the statistics of the corpus, of each speaker or of each utterance.
"""

from collections.abc import Iterable

import numpy as np
from numba import njit

from mpitrain.data.kinds import InputKind, Reading
from mpitrain.data.normalising import deviation, stored
from mpitrain.data.reader import ShardFile
from mpitrain.data.rows import Rows
from mpitrain.data.sharing import Sharing
from mpitrain.data.validation import Attributes
from mpitrain.errors import BadInput
from mpitrain.flat import Array
from mpitrain.sampling.batch import Batch, Place, SampleForm


class Frames(InputKind):
    """Windows of frames [window, dims]. Mean and 1 ÷ standard deviation are those of groups of utterances."""

    utterances: Array

    def __init__(self, files: list[ShardFile], attributes: Attributes, reading: Reading) -> None:
        reading.augmentation.refuse(files[0].kind)
        reading.refuse_window(files[0])
        how = reading.normalise
        if how in ("mean", "unit"):
            raise BadInput(f"data.normalise = {how}: for pixels; frames take corpus, speaker, utterance or none")
        self._attributes, self._normalise, self._context = attributes, how, reading.context
        self._dims = files[0].inputs[-1]
        self.form = SampleForm((sum(reading.context) + 1, self._dims))
        frames = [np.diff(file.small["utterances"]) for file in files]
        self.utterances = np.cumsum(np.concatenate([[0], *frames]))
        self._groups = _groups(files, how)

    def hold(self, rows: Rows, sharing: Sharing) -> None:
        sharing.together(lambda: self._measure(rows))
        rows.change(self._normalised)

    def _measure(self, rows: Rows) -> None:
        """Take the stored statistics, or find those of groups, for which all frames are read."""
        if self._normalise in ("speaker", "utterance"):
            self._mean, self._scale = group_statistics(rows.pieces(), self.utterances, self._groups, self._dims)
        else:
            told = self._attributes if self._normalise == "corpus" else {}
            mean, scale = stored(told, self._dims, np.float32)
            self._mean, self._scale = mean[None], scale[None]

    def _normalised(self, rows: Array, first: int) -> None:
        normalise_frames(rows, first, self.utterances, self._groups, self._mean, self._scale)

    def gather(self, rows: Rows, indices: Array, out: Batch, place: Place) -> None:
        for base, frames, which, places in rows.spans(indices, self._context):
            gather_windows(frames, base, self.utterances, which, places, self._context[0], out.inputs)


def _groups(files: list[ShardFile], normalise: str) -> Array:
    """The group of each utterance, whose statistics normalise it. Raises BadInput naming a shard without speakers."""
    utterances = sum(len(file.small["utterances"]) - 1 for file in files)
    if normalise == "utterance":
        return np.arange(utterances)
    if normalise != "speaker":
        return np.zeros(utterances, np.int64)
    for file in files:
        if "speakers" not in file.small:
            raise BadInput(f"{file.path}: names no speakers, and data.normalise = speaker needs them; try utterance")
    return np.unique(np.concatenate([file.small["speakers"] for file in files]), return_inverse=True)[1]


def group_statistics(
    pieces: Iterable[tuple[int, Array]], offsets: Array, groups: Array, dims: int
) -> tuple[Array, Array]:
    """Mean and 1 ÷ standard deviation float32 [groups, dims], over `pieces`: the number of the first frame, and rows.

    `groups` [utterances]: the group of each utterance; `offsets`: where utterances begin.
    """
    count = int(groups.max()) + 1
    frames = np.bincount(groups, np.diff(offsets), count)[:, None]
    sums, squares = np.zeros((count, dims)), np.zeros((count, dims))
    for first, rows in pieces:
        _add_moments(rows, first, offsets, groups, sums, squares)
    mean = sums / frames
    scale = 1 / deviation(mean, squares / frames - mean * mean)
    return mean.astype(np.float32), scale.astype(np.float32)


@njit(cache=True, nogil=True)
def _add_moments(rows: Array, first: int, offsets: Array, groups: Array, sums: Array, squares: Array) -> None:
    for row in range(len(rows)):
        group = groups[np.searchsorted(offsets, first + row, "right") - 1]
        for d in range(rows.shape[1]):
            value = np.float64(rows[row, d])
            sums[group, d] += value
            squares[group, d] += value * value


@njit(cache=True, nogil=True)
def normalise_frames(rows: Array, first: int, offsets: Array, groups: Array, mean: Array, scale: Array) -> None:
    """Normalise rows [n, dims], which begin at frame `first` of the corpus, in place, by the statistics of groups."""
    for row in range(len(rows)):
        group = groups[np.searchsorted(offsets, first + row, "right") - 1]
        for d in range(rows.shape[1]):
            rows[row, d] = (rows[row, d] - mean[group, d]) * scale[group, d]


@njit(cache=True, nogil=True)
def gather_windows(
    features: Array, base: int, offsets: Array, indices: Array, places: Array, left: int, out: Array
) -> None:
    """out[places[k], w] = features of frame indices[k] + w − left, repeating the edge frames of its utterance.

    `features` [m, dims] begins at frame `base` of the corpus; `offsets` [utterances+1]; `out` [n, window, dims].
    """
    window, dims = out.shape[1], out.shape[2]
    for k in range(indices.size):
        frame = indices[k]
        after = np.searchsorted(offsets, frame, "right")
        first, last = offsets[after - 1], offsets[after] - 1
        for w in range(window):
            row = min(max(frame + w - left, first), last) - base
            for d in range(dims):
                out[places[k], w, d] = features[row, d]
