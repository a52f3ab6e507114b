"""Copy minibatches to the GPU ahead of use.

While the GPU computes a minibatch, the host gathers the next one into pinned memory and starts to copy it.
"""

from collections import deque
from typing import Any

import numpy as np

from mpitrain.device.gpu_memory import GpuMemory
from mpitrain.device.prefetch import Loader
from mpitrain.flat import Array
from mpitrain.sampling.batch import Batch


class Uploading:
    """A loader that copies the minibatches of another loader, which gathers into pinned buffers, to the GPU. It holds
    two minibatches: one in use and one being copied."""

    def __init__(self, device: GpuMemory, inner: Loader) -> None:
        self._device, self._inner = device, inner
        self._slots = [_Slot(device), _Slot(device)]
        self._staged: deque[_Slot] = deque()
        self._asked, self._number = 0, 0
        self._copied = device.event()
        self._used: _Slot | None = None

    @property
    def room(self) -> int:
        """How many more minibatches may be requested now."""
        return self._inner.room - len(self._staged)

    def request(self, indices: Array, place: Any = None) -> None:
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


class _Slot:
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
