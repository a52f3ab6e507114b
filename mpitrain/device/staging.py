"""Copies between GPU and host memory, through pinned memory and while the GPU computes: of vectors, and of minibatches
ahead of their use."""

from collections import deque
from collections.abc import Iterable, Iterator

import numpy as np

from mpitrain.device.cpu import Read, Treat
from mpitrain.device.gpu_memory import GpuMemory, StreamEvent
from mpitrain.device.prefetch import Loader
from mpitrain.flat import Array
from mpitrain.sampling.batch import Batch, Place


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

    def through(self, pieces: Iterable[slice], read: Read, treat: Treat) -> Iterator[tuple[slice, Array | None]]:
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


# ---- minibatches


class Uploading:
    """A loader that copies the minibatches of another loader, which gathers into pinned buffers, to the GPU. It holds
    two minibatches: while the GPU computes one, the host gathers the next one and starts to copy it."""

    def __init__(self, device: GpuMemory, inner: Loader) -> None:
        self._device, self._inner = device, inner
        self._slots = [_Room(device), _Room(device)]
        self._staged: deque[_Room] = deque()
        self._asked, self._number = 0, 0
        self._copied = device.event()
        self._used: _Room | None = None

    @property
    def room(self) -> int:
        """How many more minibatches may be requested now."""
        return self._inner.room - len(self._staged)

    def request(self, indices: Array, place: Place = None) -> None:
        """Request these samples."""
        self._inner.request(indices, place)
        self._asked += 1

    def take(self) -> Batch:
        """The oldest requested minibatch, on the GPU; valid until the next take."""
        if self._used is not None:  # all kernels that read it have been launched
            self._used.read.record(self._device.compute)
        if not self._staged:
            self.stage()
        slot = self._used = self._staged.popleft()
        self._device.compute.wait_event(slot.filled)
        return slot.batch

    def stage(self) -> None:
        """Gather the next requested minibatch and start to copy it, if there is one and there is room."""
        if not self._asked or self._staged:
            return
        self._copied.synchronize()  # the previous copy has read all of the pinned memory
        batch = self._inner.take()
        self._asked -= 1
        slot = self._slots[self._number % 2]
        self._number += 1
        self._device.incoming.wait_event(slot.read)
        slot.fill(batch, self._device)
        self._copied.record(self._device.incoming)
        self._staged.append(slot)

    def close(self) -> None:
        """Stop, and drop minibatches that were requested but not taken."""
        self._device.incoming.synchronize()
        self._inner.close()


class _Room:
    """A minibatch's memory on the GPU, which grows to the largest one."""

    def __init__(self, device: GpuMemory) -> None:
        self.filled, self.read = device.event(), device.event()
        self._room: Batch | None = None

    def fill(self, batch: Batch, device: GpuMemory) -> None:
        """Start to copy a host minibatch to this memory."""
        count = len(batch.targets)
        if self._room is None or len(self._room.targets) < count:
            device.compute.synchronize()  # nobody reads the old memory any more
            self._room = Batch(*(device.cupy.empty(part.shape, part.dtype) for part in batch))
            device.after(device.compute, device.incoming)
        self.batch = self._room.first(count)
        for here, there in zip(self.batch, batch, strict=True):
            here.set(np.ascontiguousarray(there), stream=device.incoming)
        self.filled.record(device.incoming)
