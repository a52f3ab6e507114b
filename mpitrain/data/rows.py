"""The storage of a corpus's inputs: in memory, in shards that are read on demand, or partly the one and partly the
other."""

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


class MemoryRows:
    """All rows in one array, of which each process that shares it reads, verifies and changes a part. Raises BadInput
    naming a shard that cannot be read."""

    def __init__(self, files: list[ShardFile], sharing: Sharing) -> None:
        first, self._sharing = files[0], sharing
        self._starts = np.cumsum([0, *(file.inputs[0] for file in files)]).tolist()
        self.rows = sharing.array((self._starts[-1], *first.inputs[1:]), first.dtype)
        self._own = share(self._starts[-1], sharing.part, sharing.parts)
        self._places = np.arange(0)
        sharing.together(lambda: self._read(files))
        sharing.together(lambda: self._verify(files))

    def _read(self, files: list[ShardFile]) -> None:
        for file, start, end in zip(files, self._starts, self._starts[1:], strict=False):
            begin, stop = max(start, self._own.start), min(end, self._own.stop)
            if begin < stop:
                file.read_rows(begin - start, stop - start, self.rows[begin:stop])
            file.close()  # at once: HDF5's buffers serve the next one

    def _verify(self, files: list[ShardFile]) -> None:
        whole = share(len(files), self._sharing.part, self._sharing.parts)
        for number in range(whole.start, whole.stop):
            files[number].verify(self.rows[self._starts[number] : self._starts[number + 1]])

    def spans(self, indices: Array, context: tuple[int, int]) -> Iterator[Span]:
        """One piece: everything."""
        if len(self._places) < len(indices):
            self._places = np.arange(len(indices))
        yield 0, self.rows, indices, self._places[: len(indices)]

    def pieces(self) -> Iterator[tuple[int, Array]]:
        """One piece: everything."""
        yield 0, self.rows

    def change(self, change: Change) -> None:
        """Apply `change` now."""
        self._sharing.together(lambda: change(self.rows[self._own], self._own.start))


class ShardRows:
    """Rows in open shards, of which those of the first ones may be `kept` in memory. Neighbours are read together, so
    that a chunked order reads almost sequentially."""

    def __init__(self, files: list[ShardFile], kept: MemoryRows | None = None) -> None:
        self._files, self._kept = files, kept
        self._change: Change | None = None
        self._starts = np.cumsum([0, *(file.inputs[0] for file in files)])
        self._shape, self._dtype = files[0].inputs[1:], files[0].dtype
        self._buffer = np.empty((0, *self._shape), self._dtype)

    def spans(self, indices: Array, context: tuple[int, int]) -> Iterator[Span]:
        """Rows that contain all `indices` with `context` neighbours left and right, in pieces in the order of the rows.

        A piece is read when it is requested, and valid until the next one is.
        """
        row = prod(self._shape) * self._dtype.itemsize
        order = np.argsort(indices, kind="stable")
        wanted = indices[order]
        if self._kept:
            here = int(np.searchsorted(wanted, len(self._kept.rows) - context[1]))
            if here:
                yield 0, self._kept.rows, wanted[:here], order[:here]
            wanted, order = wanted[here:], order[here:]
        begin = 0
        while begin < len(wanted):
            last = begin + int(np.searchsorted(wanted[begin:], wanted[begin] + max(SPAN // row, 1)))
            jumps = np.flatnonzero(np.diff(wanted[begin:last]) > max(GAP // row, 1))
            end = begin + int(jumps[0]) + 1 if len(jumps) else last
            low = max(int(wanted[begin]) - context[0], 0)
            high = min(int(wanted[end - 1]) + context[1] + 1, int(self._starts[-1]))
            yield low, self._read(low, high), wanted[begin:end], order[begin:end]
            begin = end

    def pieces(self) -> Iterator[tuple[int, Array]]:
        """All rows in order, in pieces with the number of their first row."""
        step, rows = max(SPAN // (prod(self._shape) * self._dtype.itemsize), 1), int(self._starts[-1])
        if self._kept:
            yield from self._kept.pieces()
        for low in range(len(self._kept.rows) if self._kept else 0, rows, step):
            yield low, self._read(low, min(low + step, rows))

    def change(self, change: Change) -> None:
        """Apply `change` whenever rows are read, and now to those in memory."""
        self._change = change
        if self._kept:
            self._kept.change(change)

    def _read(self, low: int, high: int) -> Array:
        if len(self._buffer) < high - low:
            self._buffer = np.empty((high - low, *self._shape), self._dtype)
        rows = self._buffer[: high - low]
        for number in range(int(np.searchsorted(self._starts, low, "right")) - 1, len(self._files)):
            start = int(self._starts[number])
            if start >= high:
                break
            begin, end = max(low, start), min(high, int(self._starts[number + 1]))
            own = rows[begin - low : end - low]
            self._files[number].read_rows(begin - start, end - start, own)
            self._files[number].validate(own)
        if self._change:
            self._change(rows, low)
        return rows


Rows = MemoryRows | ShardRows
