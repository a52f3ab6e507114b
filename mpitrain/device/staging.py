"""Stage vectors between GPU and host memory through pinned memory, while the GPU computes."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from mpitrain.device.gpu_memory import GpuMemory, Stream, StreamEvent
from mpitrain.flat import Array


class Outgoing:
    """Copies a device vector to a host vector, part by part, as the parts become final in the compute stream."""

    def __init__(self, device: GpuMemory, stream: Stream, vector: Array, to: Array) -> None:
        self._device, self._stream, self._vector, self._to = device, stream, vector, to
        self._pinned = device.host_like(vector)
        self._under_way: deque[tuple[slice, StreamEvent]] = deque()

    def start(self, part: slice) -> None:
        """Copy this part, which is final once the kernels launched so far have run. It must not change until
        `finish`."""
        self._device.after(self._device.compute, self._stream)
        self._vector[part].get(stream=self._stream, out=self._pinned[part], blocking=False)
        copied = self._device.event()
        copied.record(self._stream)
        self._under_way.append((part, copied))

    def finish(self) -> None:
        """Wait until all parts are copied; each is copied from pinned memory while the next is being staged."""
        while self._under_way:
            part, copied = self._under_way.popleft()
            copied.synchronize()
            np.copyto(self._to[part], self._pinned[part])


class GpuStaging:
    """Stages pieces to the GPU, processes them there, and stages the results back, all three at the same time."""

    def __init__(self, device: GpuMemory, stream: Stream, vector: Array) -> None:
        self._device, self._stream, self._dtype = device, stream, vector.dtype
        self._back = device.host_like(vector)
        self._slots: list[_Slot] = []

    def through(
        self,
        pieces: Iterable[slice],
        read: Callable[[slice, Array], None],
        treat: Callable[[slice, Array], Array | None],
    ) -> Iterator[tuple[slice, Array | None]]:
        """Like Staging.through. A piece is yielded when the staging of the next one has begun."""
        device, coming = self._device, deque[tuple[slice, Array | None, StreamEvent]]()
        for number, piece in enumerate(pieces):
            slot = self._slot(number, piece.stop - piece.start)
            slot.copied.synchronize()  # until then its pinned memory is still being read
            host, here = slot.pinned[: piece.stop - piece.start], slot.array[: piece.stop - piece.start]
            read(piece, host)
            device.incoming.wait_event(slot.used)
            here.set(host, stream=device.incoming)
            slot.copied.record(device.incoming)
            device.compute.wait_event(slot.copied)
            result = treat(piece, here)
            slot.used.record(device.compute)
            coming.append((piece, *self._send_back(piece, result)))
            if len(coming) > 1:
                yield self._arrive(*coming.popleft())
        for each in coming:
            yield self._arrive(*each)

    def _send_back(self, piece: slice, result: Array | None) -> tuple[Array | None, StreamEvent]:
        copied = self._device.event()
        if result is None:
            return None, copied
        self._device.after(self._device.compute, self._stream)
        host = self._back[piece]
        result.get(stream=self._stream, out=host, blocking=False)
        copied.record(self._stream)
        return host, copied

    @staticmethod
    def _arrive(piece: slice, host: Array | None, copied: StreamEvent) -> tuple[slice, Array | None]:
        if host is not None:
            copied.synchronize()
        return piece, host

    def _slot(self, number: int, size: int) -> "_Slot":
        if number % 2 == len(self._slots):
            self._slots.append(_Slot(self._device, size, self._dtype))
        elif self._slots[number % 2].array.size < size:
            self._slots[number % 2].copied.synchronize()
            self._device.compute.synchronize()
            self._slots[number % 2] = _Slot(self._device, size, self._dtype)
        return self._slots[number % 2]


class _Slot:
    """A piece's memory on both sides, with the events of its last use."""

    def __init__(self, device: GpuMemory, size: int, dtype: np.dtype) -> None:
        self.pinned, self.array = device.pinned(size, dtype), device.cupy.empty(size, dtype)
        self.copied, self.used = device.event(), device.event()
        self.used.record(device.compute)  # CuPy reuses freed memory while kernels in this stream still use it
