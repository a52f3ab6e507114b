"""A GPU's memory, with three streams: for computing, for incoming copies and for outgoing copies.

All kernels go to the compute stream, in program order. By events, a copy waits for the kernels before it, and later
kernels wait for the copy; the host waits only when it reads data, such as a loss or a vector to send.
"""

from typing import Any

import numpy as np

from mpitrain.flat import Array, blocks

CHUNK = 1 << 20  # elements staged at a time: 4 MiB, while 1 MiB suffices for the full speed of the bus


Stream = Any  #: a cupy.cuda.Stream: work that runs in order; entered as a context, it takes the kernels launched
StreamEvent = Any  #: a cupy.cuda.Event: a mark in a stream, `done` when all work before it has run


class GpuMemory:
    """The memory of GPU `number` of this node, and what a device copies to it and from it."""

    def __init__(self, cupy: Any, number: int) -> None:
        self.cupy, self.number = cupy, number
        cupy.cuda.Device(number).use()
        self.compute, self.incoming, self.leaving = (cupy.cuda.Stream(non_blocking=True) for _ in range(3))
        self.compute.__enter__()  # not `use`, whose effect ends with any `with` block, even in CuPy's own functions
        self._chunks: dict[np.dtype, list[tuple[Array, StreamEvent]]] = {}

    def to_device(self, vector: Array) -> Array:
        if not isinstance(vector, np.ndarray):
            return vector
        placed = self.cupy.empty(vector.shape, vector.dtype)
        self.upload(placed.reshape(-1), np.ascontiguousarray(vector).reshape(-1))
        return placed

    def upload(self, to: Array, vector: Array, steady: bool = False) -> None:
        """Copy by two pinned buffers: one is filled while the other is copied. Later kernels see the whole vector."""
        self.after(self.compute, self.incoming)
        if steady:
            to.set(vector, stream=self.incoming)
            self.after(self.incoming, self.compute)
            return
        for number, piece in enumerate(blocks(vector.size, CHUNK)):
            pinned, copied = self._chunk(vector.dtype, number, piece)
            copied.synchronize()
            np.copyto(pinned, vector[piece])
            to[piece].set(pinned, stream=self.incoming)
            copied.record(self.incoming)
        self.after(self.incoming, self.compute)

    def download(self, vector: Array, to: Array) -> None:
        self.after(self.compute, self.leaving)
        coming: list[tuple[slice, Array, StreamEvent]] = []
        for number, piece in enumerate(blocks(to.size, CHUNK)):
            if len(coming) == 2:
                self._arrive(*coming.pop(0), to)
            pinned, copied = self._chunk(to.dtype, number, piece)
            copied.synchronize()
            vector[piece].get(stream=self.leaving, out=pinned, blocking=False)
            copied.record(self.leaving)
            coming.append((piece, pinned, copied))
        for each in coming:
            self._arrive(*each, to)

    def host_like(self, vector: Array) -> Array:
        return self.pinned(vector.shape, vector.dtype)

    def pinned(self, shape: int | tuple[int, ...], dtype: Any) -> Array:
        """An uninitialised pinned array, for asynchronous copies."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        with self.cupy.cuda.Device(self.number):  # another thread may call this
            memory = self.cupy.cuda.alloc_pinned_memory(max(size, 1))
        return np.frombuffer(memory, np.uint8, size).view(dtype).reshape(shape)

    def start_download(self, vector: Array, pinned: Array) -> StreamEvent:
        """Start to copy a device vector to pinned memory once the kernels launched so far have run; returns the event
        of its arrival."""
        self.after(self.compute, self.leaving)
        vector.get(stream=self.leaving, out=pinned, blocking=False)
        return self.mark(self.leaving)

    def event(self) -> StreamEvent:
        """An event to record in a stream."""
        return self.cupy.cuda.Event(disable_timing=True)

    def mark(self, stream: Stream) -> StreamEvent:
        """An event after the work that is in the stream now."""
        event = self.event()
        event.record(stream)
        return event

    def after(self, first: Stream, then: Stream) -> None:
        """Let later work in stream `then` wait for the work that is in stream `first` now."""
        then.wait_event(self.mark(first))

    def _chunk(self, dtype: np.dtype, number: int, piece: slice) -> tuple[Array, StreamEvent]:
        """One of two alternating pinned buffers, with the event of its last copy."""
        if dtype not in self._chunks:
            self._chunks[dtype] = [(self.pinned(CHUNK, dtype), self.event()) for _ in range(2)]
        buffer, copied = self._chunks[dtype][number % 2]
        return buffer[: piece.stop - piece.start], copied

    @staticmethod
    def _arrive(piece: slice, pinned: Array, copied: StreamEvent, to: Array) -> None:
        copied.synchronize()
        np.copyto(to[piece], pinned)
