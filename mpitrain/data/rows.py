"""The storage of a corpus's inputs: in memory, in shards that are read on demand, or the first shards in memory and the
others on demand."""

from collections.abc import Callable, Iterator
from math import prod

import numpy as np

from mpitrain.data.reader import ShardFile
from mpitrain.data.sharing import Sharing
from mpitrain.flat import Array, share

Change = Callable[[Array, int], None]  # changes freshly read rows in place; the number is that of the first row

SPAN = 1 << 22  # most bytes of one read
GAP = 1 << 16  # a gap of up to this many bytes between two samples is read rather than skipped

#: Number of the first row in the corpus, the rows, the indices served from them, and the places of these in the batch.
Span = tuple[int, Array, Array, Array]


class Rows:
    """The rows of shards. The first `kept` shards are in memory: one array, of which each process of `sharing` reads,
    verifies and changes a part. Of the other shards, neighbouring rows are read together, so that a chunked order
    reads almost sequentially. Raises BadInput naming a shard that cannot be read."""

    def __init__(self, files: list[ShardFile], kept: int, sharing: Sharing) -> None:
        self._files = files if kept < len(files) else []
        self._change: Change | None = None
        self._starts = np.cumsum([0, *(file.inputs[0] for file in files)])
        self._shape, self._dtype = files[0].inputs[1:], files[0].dtype
        self._row_bytes = prod(self._shape) * self._dtype.itemsize
        self._buffer, self._places = np.empty((0, *self._shape), self._dtype), np.arange(0)
        self._rows, self._held = int(self._starts[-1]), int(self._starts[kept])
        self._sharing, self._own = sharing, share(self._held, sharing.part, sharing.parts)
        if kept:
            self._memory = sharing.array((self._held, *self._shape), self._dtype)
            sharing.together(lambda: self._fill(files[:kept]))
            sharing.together(lambda: self._verify(files[:kept]))

    def _fill(self, files: list[ShardFile]) -> None:
        for file, start, end in zip(files, self._starts.tolist(), self._starts[1:].tolist(), strict=False):
            begin, stop = max(start, self._own.start), min(end, self._own.stop)
            if begin < stop:
                file.read_rows(begin - start, stop - start, self._memory[begin:stop])
            file.close()  # at once, so that the next file reuses HDF5's buffers

    def _verify(self, files: list[ShardFile]) -> None:
        whole = share(len(files), self._sharing.part, self._sharing.parts)
        for number in range(whole.start, whole.stop):
            files[number].verify(self._memory[self._starts[number] : self._starts[number + 1]])

    def spans(self, indices: Array, context: tuple[int, int]) -> Iterator[Span]:
        """Rows that contain all `indices` with `context` neighbours left and right: one piece if all are in memory,
        otherwise pieces in the order of the rows.

        A piece is read when it is requested, and valid until the next one is.
        """
        indices = indices.view()
        indices.flags.writeable = False  # like an epoch's order: Numba would compile another type separately
        if self._held == self._rows:
            if len(self._places) < len(indices):
                self._places = np.arange(len(indices))
            yield 0, self._memory, indices, self._places[: len(indices)]
            return
        order = np.argsort(indices, kind="stable")
        wanted = indices[order]
        wanted.flags.writeable = False
        begin = int(np.searchsorted(wanted, self._held - context[1])) if self._held else 0
        if begin:
            yield 0, self._memory, wanted[:begin], order[:begin]
        while begin < len(wanted):
            last = begin + int(np.searchsorted(wanted[begin:], wanted[begin] + max(SPAN // self._row_bytes, 1)))
            jumps = np.flatnonzero(np.diff(wanted[begin:last]) > max(GAP // self._row_bytes, 1))
            end = begin + int(jumps[0]) + 1 if len(jumps) else last
            low = max(int(wanted[begin]) - context[0], 0)
            high = min(int(wanted[end - 1]) + context[1] + 1, self._rows)
            yield low, self._read(low, high), wanted[begin:end], order[begin:end]
            begin = end

    def pieces(self) -> Iterator[tuple[int, Array]]:
        """All rows in order, in pieces with the number of their first row."""
        if self._held:
            yield 0, self._memory
        step = max(SPAN // self._row_bytes, 1)
        for low in range(self._held, self._rows, step):
            yield low, self._read(low, min(low + step, self._rows))

    def change(self, change: Change) -> None:
        """Apply `change` whenever rows are read, and now to those in memory."""
        self._change = change
        if self._held:
            self._sharing.together(lambda: change(self._memory[self._own], self._own.start))

    def _read(self, low: int, high: int) -> Array:
        if len(self._buffer) < high - low:
            self._buffer = np.empty((high - low, *self._shape), self._dtype)
        rows = self._buffer[: high - low]
        for number in range(int(np.searchsorted(self._starts, low, "right")) - 1, len(self._files)):
            start = int(self._starts[number])
            if start >= high:
                break
            begin, end = max(low, start), min(high, int(self._starts[number + 1]))
            if begin == end:
                continue  # a shard without samples
            own = rows[begin - low : end - low]
            self._files[number].read_rows(begin - start, end - start, own)
            self._files[number].validate(own)
        if self._change:
            self._change(rows, low)
        return rows
