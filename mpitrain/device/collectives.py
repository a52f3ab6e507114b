"""Collectives on GPU arrays, staged in pinned memory.

An operation has three stages: its input becomes final and is copied to the host; it runs; its result is copied back,
and later kernels wait for that copy. Operations, including those on host arrays, start in the order of their requests,
which is the same on every rank. `Test` of any request makes all of them progress.
"""

from collections import deque
from collections.abc import Callable

import numpy as np

from mpitrain.device.gpu_memory import GpuMemory, StreamEvent
from mpitrain.flat import Array
from mpitrain.mpi.collectives import Carrier, CollectiveCall, CountedCollectives
from mpitrain.mpi.communicator import Communicator, Request


class Queued:
    """A collective in a carrier's queue, which `advance` makes advance; with the interface of an MPI request."""

    def __init__(self, advance: Callable[[], None]) -> None:
        self._advance, self.done = advance, False

    def Test(self) -> bool:  # named as in MPI's requests
        """Whether kernels launched from now on see the result."""
        self._advance()
        return self.done

    def started(self) -> bool:
        """Start the collective if it may start now; whether it has started."""
        raise NotImplementedError

    def finished(self) -> bool:
        """Advance as far as possible; whether it has completed."""
        raise NotImplementedError


class PendingCollective(Queued):
    """One that starts when its input is on the host; at its end the copy of its result to the GPU has been started."""

    def __init__(
        self, advance: Callable[[], None], start: Callable[[], Request], end: Callable[[], None], ready: StreamEvent
    ) -> None:
        super().__init__(advance)
        self._start, self._end, self._ready = start, end, ready
        self._request: Request | None = None

    def started(self) -> bool:
        if self._request is None and self._ready.done:
            self._request = self._start()
        return self._request is not None

    def finished(self) -> bool:
        if not self.done and self._request is not None and self._request.Test():
            self._end()
            self.done = True
        return self.done


class StagedCarrier(Carrier):
    """Takes device arrays in collectives, too."""

    def __init__(self, transport: CountedCollectives, device: GpuMemory) -> None:
        self._transport, self._device = transport, device
        self._waiting: deque[Queued] = deque()
        self._queues = [self._waiting]  # with those of the duplicate
        self._spare: dict[tuple[int, str], list[tuple[Array, StreamEvent]]] = {}

    def duplicate(self, transport: CountedCollectives) -> "StagedCarrier":
        duplicate = type(self)(transport, self._device)
        self._queues.append(duplicate._waiting)
        duplicate._queues = self._queues
        return duplicate

    def advance(self) -> None:
        """Make operations in progress advance."""
        for waiting in self._queues:
            for operation in tuple(waiting):
                if not operation.started():
                    break
                if operation.finished():
                    waiting.remove(operation)

    # ---- the stages

    def begin(self, comm: Communicator, call: CollectiveCall) -> Request:
        device, on_device = self._device, [not isinstance(array, np.ndarray) for array in call.arrays]
        if not any(on_device) and not self._waiting:
            return super().begin(comm, call)
        arrays = call.arrays
        here = [self._pinned(a) if d else (a, device.event()) for a, d in zip(arrays, on_device, strict=True)]
        device.after(device.compute, device.leaving)
        for array, (host, _), part, there in zip(arrays, here, call.reads, on_device, strict=False):
            if there and part is not False and array.size:
                piece = slice(0, array.size) if part is True else part
                array.reshape(-1)[piece].get(stream=device.leaving, out=host[piece], blocking=False)
        ready = device.event()
        ready.record(device.leaving)

        def end() -> None:
            device.after(device.compute, device.incoming)
            for array, (host, free), back, there in zip(arrays, here, call.writes, on_device, strict=False):
                if there and back and array.size:
                    array.reshape(-1).set(host, stream=device.incoming)
                if there:
                    free.record(device.incoming)
                    self._spare.setdefault((host.size, host.dtype.char), []).append((host, free))
            device.after(device.incoming, device.compute)

        hosts = [host for host, _ in here]
        return self._enqueue(PendingCollective(self.advance, lambda: call.begin(comm, hosts), end, ready))

    def _enqueue(self, operation: Queued) -> Request:
        self._waiting.append(operation)
        self.advance()
        return operation

    def _pinned(self, array: Array) -> tuple[Array, StreamEvent]:
        """A flat pinned array of the same size, with the event of its last copy."""
        spare = self._spare.get((array.size, array.dtype.char), [])
        if spare:
            host, free = spare.pop()
            free.synchronize()
            return host, free
        return self._device.pinned(array.size, array.dtype), self._device.event()
