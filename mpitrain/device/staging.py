"""Stage vectors between GPU and host memory through pinned memory, while the GPU computes."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from mpitrain.device.gpu_memory import GpuMemory, StreamEvent
from mpitrain.flat import Array


class Outgoing:
    """Copies a device vector to a host vector, part by part, as the parts become final in the compute stream."""

    def __init__(self, device: GpuMemory, vector: Array, to: Array) -> None:
        self._device, self._vector, self._to = device, vector, to
        self._pinned = device.host_like(vector)
        self._under_way: deque[tuple[slice, StreamEvent]] = deque()

    def start(self, part: slice) -> None:
        """Copy this part, which is final once the kernels launched so far have run, and stays so until `finish`."""
        self._under_way.append((part, self._device.start_download(self._vector[part], self._pinned[part])))

    def finish(self) -> None:
        """Wait until all parts are copied; each is copied from pinned memory while the next is being staged."""
        while self._under_way:
            part, copied = self._under_way.popleft()
            copied.synchronize()
            np.copyto(self._to[part], self._pinned[part])


class GpuStaging:
    """Stages pieces to the GPU, processes them there, and stages the results back, all three at the same time."""

    def __init__(self, device: GpuMemory, vector: Array) -> None:
        self._device, self._back = device, device.host_like(vector)
        self._slots: list[_Slot] = []

    def through(
        self,
        pieces: Iterable[slice],
        read: Callable[[slice, Array], object],
        treat: Callable[[slice, Array], Array | None],
    ) -> Iterator[tuple[slice, Array | None]]:
        """Like Staging.through. A piece is yielded when the staging of the next one has begun."""
        device, coming = self._device, deque[tuple[slice, Array | None, StreamEvent | None]]()
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
            back = None if result is None else self._back[piece]
            coming.append((piece, back, None if result is None else device.start_download(result, back)))
            if len(coming) > 1:
                yield self._arrive(*coming.popleft())
        for each in coming:
            yield self._arrive(*each)

    @staticmethod
    def _arrive(piece: slice, host: Array | None, copied: StreamEvent | None) -> tuple[slice, Array | None]:
        if copied is not None:
            copied.synchronize()
        return piece, host

    def _slot(self, number: int, size: int) -> "_Slot":
        if number % 2 == len(self._slots):
            self._slots.append(_Slot(self._device, size, self._back.dtype))
        elif self._slots[number % 2].array.size < size:
            self._slots[number % 2].copied.synchronize()
            self._device.compute.synchronize()
            self._slots[number % 2] = _Slot(self._device, size, self._back.dtype)
        return self._slots[number % 2]


class _Slot:
    """A piece's memory on both sides, with the events of its last use."""

    def __init__(self, device: GpuMemory, size: int, dtype: np.dtype) -> None:
        self.pinned, self.array = device.pinned(size, dtype), device.cupy.empty(size, dtype)
        self.copied = device.event()
        self.used = device.mark(device.compute)  # CuPy reuses freed memory while kernels in this stream still use it
