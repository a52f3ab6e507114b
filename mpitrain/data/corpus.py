"""A corpus: one part of a data set, from which minibatches are gathered.

Frame windows are cut on the fly, never across utterances; images become floating point numbers; both are normalised by
the stored mean and standard deviation. A part that fits under the memory limit is read whole, a larger one as needed.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mpitrain.data.batch import Batch
from mpitrain.data.gather import gather_images, gather_windows
from mpitrain.data.reader import ShardFile
from mpitrain.data.rows import MemoryRows, Rows, ShardRows
from mpitrain.data.shards import folder_parts
from mpitrain.errors import BadInput
from mpitrain.flat import Array

MEMORY_LIMIT = 4e9  # bytes


def parts(path: Path) -> list[str]:
    """The parts of a shard folder: train, dev, test, test-NAME. Raises BadInput naming folder or missing shard."""
    return list(folder_parts(path))


def open_corpus(
    path: Path,
    part: str,
    *,
    context: int | Sequence[int] = 0,
    dtype: np.dtype | type | str = np.float32,
    memory_limit: float = MEMORY_LIMIT,
) -> "Corpus":
    """One part of the shard folder `path`.

    `context`: frames left and right of the centre frame, one number for both or two. `dtype`: of the minibatches.
    `memory_limit`: bytes of inputs above which they stay on disk. Raises BadInput naming the folder, the shard, or
    data.context.
    """
    found = folder_parts(path)
    if part not in found:
        raise BadInput(f"{path}: has no part {part}, only {', '.join(found)}")
    files = [ShardFile(file) for file in found[part]]
    _check_alike(files)
    corpus = Corpus(part, files, _both_sides(context), np.dtype(dtype), memory_limit)
    if corpus.in_memory:
        for file in files:
            file.close()
    return corpus


class Corpus:
    """`samples` inputs of `shape` (frames: [window, dims]; images: [h, w, c]) with targets in range(`classes`).

    `kind` is "frames" or "images"; `attributes` those of the first shard; `in_memory` whether reading is over.
    """

    def __init__(
        self, part: str, files: list[ShardFile], context: tuple[int, int], dtype: np.dtype, memory_limit: float
    ) -> None:
        first = files[0]
        self.part, self.kind, self.classes, self.attributes = part, first.kind, first.classes, first.attributes
        self.targets = np.concatenate([file.targets for file in files])
        self.samples = len(self.targets)
        self._context = context
        self._mean, self._scale = _normalisation(first, np.dtype("float32") if self.kind == "frames" else dtype)
        if self.kind == "frames":
            self.shape: tuple[int, ...] = (sum(context) + 1, first.inputs[-1])
            self._offsets = _joined([file.utterances for file in files])
        elif any(context):
            raise BadInput(f"data.context = {list(context)}: images have no neighbouring frames")
        else:
            self.shape = first.inputs[1:]
        self.in_memory = sum(file.inputs_bytes for file in files) <= memory_limit
        change = self._normalise if self.kind == "frames" else None
        self._rows: Rows = MemoryRows(files, change) if self.in_memory else ShardRows(files, change)

    def gather(self, indices: Array, out: Batch) -> Batch:
        """Fill `out` (inputs [n, *shape], targets [n]) with the samples of `indices` int64 [n], in that order.

        Raises IndexError for an index outside range(samples), BadInput for a shard that cannot be read.
        """
        if not len(indices):
            return out
        if indices.min() < 0 or indices.max() >= self.samples:
            raise IndexError(f"samples {indices.min()} to {indices.max()} of {self.samples}")
        np.take(self.targets, indices, out=out.targets, mode="clip")
        for base, rows, which, places in self._rows.spans(indices, self._context):
            self._fill(rows, base, which, places, out.inputs)
        return out

    def _fill(self, rows: Array, base: int, indices: Array, places: Array, out: Array) -> None:
        if self.kind == "frames":
            gather_windows(rows, base, self._offsets, indices, places, self._context[0], out)
            return
        images, pixels = (array.reshape(len(array), -1, self.shape[-1]) for array in (rows, out))
        gather_images(images, base, self._mean, self._scale, indices, places, pixels)

    def _normalise(self, features: Array) -> None:
        np.subtract(features, self._mean, out=features)
        np.multiply(features, self._scale, out=features)


def _normalisation(file: ShardFile, dtype: np.dtype) -> tuple[Array, Array]:
    """Mean and 1 ÷ standard deviation of each channel; 0 and 1 where the shard has none."""
    channels = file.inputs[-1]
    mean = np.broadcast_to(file.attributes.get("mean", 0.0), channels)
    deviation = np.broadcast_to(file.attributes.get("standard_deviation", 1.0), channels)
    return mean.astype(dtype), (1.0 / deviation.astype(np.float64)).astype(dtype)


def _both_sides(context: int | Sequence[int]) -> tuple[int, int]:
    sides = [context] if isinstance(context, int) else list(context)
    if len(sides) > 2 or any(side < 0 for side in sides):
        raise BadInput(f"data.context = {context}: expected frames left and right of the centre")
    return (sides[0], sides[-1]) if sides else (0, 0)


def _check_alike(files: list[ShardFile]) -> None:
    first = files[0]
    names = ("mean", "standard_deviation")
    for file in files[1:]:
        same = (file.kind, file.classes, file.inputs[1:]) == (first.kind, first.classes, first.inputs[1:])
        if not same or any(
            not np.array_equal(file.attributes.get(name, 0), first.attributes.get(name, 0)) for name in names
        ):
            raise BadInput(f"{file.path}: another kind, shape, classes or normalisation than {first.path.name}")


def _joined(offsets: list[Array | None]) -> Array:
    """Offsets into the concatenation from each shard's own."""
    joined, base = [np.zeros(1, np.int64)], 0
    for own in offsets:
        assert own is not None
        joined.append(own[1:] + base)
        base += int(own[-1])
    return np.concatenate(joined)
