"""Collectives on GPU arrays, staged in pinned memory.

An operation has three stages: its input becomes final and is copied to the host; it runs; its result is copied back,
and later kernels wait for that copy. Operations, including those on host arrays, start in the order of their requests,
which is the same on every rank. `Test` of any request makes all of them progress.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mpitrain.device.gpu_memory import GpuMemory, Stream, StreamEvent
from mpitrain.flat import Array
from mpitrain.mpi.collectives import Carrier, CollectiveCall, CountedCollectives
from mpitrain.mpi.communicator import Communicator, Request

Steps = Iterator[Sequence[Request]]  #: a collective's steps: the requests that must complete before the next one


@dataclass(frozen=True)
class Mark:
    """An event in a stream, with the interface of an MPI request."""

    event: StreamEvent

    def Test(self) -> bool:  # named as in MPI's requests
        """Whether the stream has reached the event."""
        return self.event.done


class QueuedCollective:
    """A collective in a carrier's queue, which `advance` makes advance; with the interface of an MPI request. It has
    started when its first step is done."""

    def __init__(self, advance: Callable[[], None], steps: Steps) -> None:
        self._advance, self._steps, self._pending = advance, steps, list(next(steps))
        self.started = self.done = False

    def Test(self) -> bool:  # named as in MPI's requests
        """Whether kernels launched from now on see the result."""
        self._advance()
        return self.done

    def proceed(self) -> None:
        """Advance as far as possible."""
        while not self.done:
            self._pending = [each for each in self._pending if not each.Test()]
            if self._pending:
                return
            self.started, step = True, next(self._steps, None)
            self.done, self._pending = step is None, list(step or ())


class StagedCarrier(Carrier):
    """A carrier that also takes device arrays in collectives."""

    def __init__(self, transport: CountedCollectives, device: GpuMemory) -> None:
        self._transport, self._device = transport, device
        self._waiting: deque[QueuedCollective] = deque()
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
                operation.proceed()
                if not operation.started:
                    break
                if operation.done:
                    waiting.remove(operation)

    # ---- the stages

    def begin(self, comm: Communicator, call: CollectiveCall) -> Request:
        if not self._waiting and all(isinstance(array, np.ndarray) for array in call.arrays):
            return super().begin(comm, call)
        return self._enqueue(self._staged(comm, call))

    def _staged(self, comm: Communicator, call: CollectiveCall) -> Steps:
        """The steps of a collective on pinned copies; at the end, the copies back to the GPU have been started."""
        device, arrays = self._device, call.arrays
        on_device = [not isinstance(array, np.ndarray) for array in arrays]
        here = [self._pinned(a) if d else (a, device.event()) for a, d in zip(arrays, on_device, strict=True)]
        device.after(device.compute, device.leaving)
        for array, (host, _), part, there in zip(arrays, here, call.reads, on_device, strict=False):
            if there and part is not False and array.size:
                piece = slice(0, array.size) if part is True else part
                array.reshape(-1)[piece].get(stream=device.leaving, out=host[piece], blocking=False)
        yield self._settled(device.leaving)
        yield [call.begin(comm, [host for host, _ in here])]
        device.after(device.compute, device.incoming)
        for array, (host, free), back, there in zip(arrays, here, call.writes, on_device, strict=False):
            if there and back and array.size:
                array.reshape(-1).set(host, stream=device.incoming)
            if there:
                free.record(device.incoming)
                self._spare.setdefault((host.size, host.dtype.char), []).append((host, free))
        device.after(device.incoming, device.compute)

    def _enqueue(self, steps: Steps) -> Request:
        operation = QueuedCollective(self.advance, steps)
        self._waiting.append(operation)
        self.advance()
        return operation

    def _settled(self, stream: Stream) -> list[Request]:
        """A request that completes when the work that is now in the stream has run."""
        return [Mark(self._device.mark(stream))]

    def _pinned(self, array: Array) -> tuple[Array, StreamEvent]:
        """A flat pinned array of the same size, with the event of its last copy."""
        spare = self._spare.get((array.size, array.dtype.char), [])
        if spare:
            host, free = spare.pop()
            free.synchronize()
            return host, free
        return self._device.pinned(array.size, array.dtype), self._device.event()
