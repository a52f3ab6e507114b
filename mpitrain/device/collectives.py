"""Collectives on GPU arrays, staged in pinned memory.

An operation has three stages: its input becomes final and is copied to the host; it runs; its result is copied back,
and later kernels wait for that copy. Operations, including those on host arrays, start in the order of their requests,
which is the same on every rank. `Test` of any request makes all of them progress.
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Protocol

import numpy as np

from mpitrain.device.gpu_memory import GpuMemory
from mpitrain.device.streams import StreamEvent
from mpitrain.flat import Array
from mpitrain.mpi import Transport
from mpitrain.mpi.collectives import CountedCollectives
from mpitrain.mpi.communicator import Request


class Queued(Request, Protocol):
    """A collective in a `StagedTransport`'s queue."""

    def started(self) -> bool:
        """Start the collective if it may start now; whether it has started."""

    def finished(self) -> bool:
        """Advance as far as possible; whether it has completed."""


class PendingCollective:
    """One collective in progress, with the interface of an MPI request."""

    def __init__(
        self, queue: "StagedTransport", start: Callable[[], Request], end: Callable[[], None], ready: StreamEvent
    ) -> None:
        self._queue, self._start, self._end, self._ready = queue, start, end, ready
        self._request: Request | None = None
        self.done = False

    def Test(self) -> bool:  # named as in MPI's requests
        """Whether kernels launched from now on see the result."""
        self._queue.advance()
        return self.done

    def started(self) -> bool:
        """Start the collective if its input is on the host; whether it has started."""
        if self._request is None and self._ready.done:
            self._request = self._start()
        return self._request is not None

    def finished(self) -> bool:
        """Whether it has completed; then the copy of its result to the GPU has been started."""
        if not self.done and self._request is not None and self._request.Test():
            self._end()
            self.done = True
        return self.done


class StagedTransport(CountedCollectives):
    """A transport whose collectives also accept device arrays. Everything else is passed to the wrapped transport."""

    def __init__(self, transport: Transport, device: GpuMemory) -> None:
        self._transport, self._device = transport, device
        self._waiting: deque[Queued] = deque()
        self._queues = [self._waiting]  # with those of the duplicate
        self._spare: dict[tuple[int, str], list[tuple[Array, StreamEvent]]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            super().__setattr__(name, value)
        else:
            setattr(self._transport, name, value)

    def duplicate(self) -> "StagedTransport":
        """A transport over a duplicate communicator, whose collectives are matched separately. Collective."""
        duplicate = type(self)(self._transport.duplicate(), self._device)
        self._queues.append(duplicate._waiting)
        duplicate._queues = self._queues
        return duplicate

    def begin_sum(self, array: Array) -> Request:
        return self._in_place(self._transport.begin_sum, array)

    def begin_maximum(self, array: Array) -> Request:
        return self._in_place(self._transport.begin_maximum, array)

    def begin_broadcast(self, array: Array, root: int) -> Request:
        return self._launch(
            lambda here: self._transport.begin_broadcast(here[0], root),
            [array],
            reading=[self._transport.rank == root],
            writing=[self._transport.rank != root],
        )

    def begin_reduce(self, root: int, array: Array, out: Array | None) -> Request:
        arrays = [array] if out is None else [array, out]
        return self._launch(
            lambda here: self._transport.begin_reduce(root, here[0], None if out is None else here[1]),
            arrays,
            reading=[True, False],
            writing=[False, True],
        )

    def begin_gather(self, own: Array | None, out: Array, counts: list[int]) -> Request:
        if own is not None:
            return self._launch(
                lambda here: self._transport.begin_gather(here[0], here[1], counts),
                [own, out],
                reading=[True, False],
                writing=[False, True],
            )
        return self._launch(
            lambda here: self._transport.begin_gather(None, here[0], counts),
            [out],
            reading=[pieces_of(counts)[self._transport.position]],
            writing=[True],
        )

    def begin_reduce_scatter(self, array: Array, own: Array, counts: list[int]) -> Request:
        return self._launch(
            lambda here: self._transport.begin_reduce_scatter(here[0], here[1], counts),
            [array, own],
            reading=[True, False],
            writing=[False, True],
        )

    def advance(self) -> None:
        """Make operations in progress advance."""
        for waiting in self._queues:
            for operation in tuple(waiting):
                if not operation.started():
                    break
                if operation.finished():
                    waiting.remove(operation)

    # ---- the stages

    def _in_place(self, start: Callable[[Array], Request], array: Array) -> Request:
        return self._launch(lambda here: start(here[0]), [array], reading=[True], writing=[True])

    def _launch(
        self,
        start: Callable[[Sequence[Array]], Request],
        arrays: Sequence[Array],
        reading: Sequence[bool | slice],
        writing: Sequence[bool],
    ) -> Request:
        """Queue an operation. `reading`: the arrays, or parts of them, that it reads; `writing`: those it writes."""
        device, on_device = self._device, [not isinstance(array, np.ndarray) for array in arrays]
        if not any(on_device) and not self._waiting:
            return start(arrays)
        here = [self._pinned(a) if d else (a, device.event()) for a, d in zip(arrays, on_device, strict=True)]
        device.after(device.compute, device.leaving)
        for array, (host, _), part, there in zip(arrays, here, reading, on_device, strict=False):
            if there and part is not False and array.size:
                piece = slice(0, array.size) if part is True else part
                array.reshape(-1)[piece].get(stream=device.leaving, out=host[piece], blocking=False)
        ready = device.event()
        ready.record(device.leaving)

        def end() -> None:
            device.after(device.compute, device.incoming)
            for array, (host, free), back, there in zip(arrays, here, writing, on_device, strict=False):
                if there and back and array.size:
                    array.reshape(-1).set(host, stream=device.incoming)
                if there:
                    free.record(device.incoming)
                    self._spare.setdefault((host.size, host.dtype.char), []).append((host, free))
            device.after(device.incoming, device.compute)

        return self._enqueue(PendingCollective(self, lambda: start([host for host, _ in here]), end, ready))

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


def pieces_of(counts: Sequence[int]) -> list[slice]:
    """The members' pieces of a vector, `counts` elements long."""
    ends = list(accumulate(counts))
    return [slice(end - count, end) for count, end in zip(counts, ends, strict=True)]
