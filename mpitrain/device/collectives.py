"""Collectives on arrays that lie on the GPU: by way of pinned memory, or handed to a CUDA-aware MPI.

An operation goes through stages: its input is final and has crossed to the host; it is under way; its result crosses
back, and later kernels wait for that. Operations start in the order in which they were asked for, on every rank alike,
those on host arrays among them. `Test` of any request moves all of them on.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mpitrain.device.messages import DirectMessages
from mpitrain.flat import Array

if TYPE_CHECKING:
    from mpitrain.device.gpu import Gpu
    from mpitrain.mpi import Transport


class Operation:
    """One collective under way, with the face of a request."""

    def __init__(self, queue: "StagedTransport", start: Callable[[], Any], end: Callable[[], None], ready: Any) -> None:
        self._queue, self._start, self._end, self._ready = queue, start, end, ready
        self._request: Any = None
        self.done = False

    def Test(self) -> bool:  # as MPI's requests have it
        """Whether the result is there for kernels launched from now on."""
        self._queue.advance()
        return self.done

    def started(self) -> bool:
        """Start it if its input has crossed; whether it has started."""
        if self._request is None and (self._ready is None or self._ready.done):
            self._request = self._start()
        return self._request is not None

    def finished(self) -> bool:
        """Whether it is over; then its result is on its way back."""
        if not self.done and self._request is not None and self._request.Test():
            self._end()
            self.done = True
        return self.done


class StagedTransport(DirectMessages):
    """A transport that takes arrays of the device too, in messages if MPI does. All else is the transport's own."""

    def __init__(self, transport: "Transport", device: "Gpu", direct: bool | None = None) -> None:
        self._transport, self._device = transport, device
        self._direct = device.direct if direct is None else direct
        self._waiting: deque[Operation] = deque()
        self._spare: dict[tuple[int, str], list[tuple[Array, Any]]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            super().__setattr__(name, value)
        else:
            setattr(self._transport, name, value)

    def twin(self) -> "StagedTransport":
        """The same ranks with collectives that are matched apart from this one's. Collective.

        Neither hands arrays to MPI any more: that blocks, and two ranks could block in one of the two each.
        """
        self._direct = False
        return StagedTransport(self._transport.twin(), self._device, direct=False)

    def start_sum(self, array: Array) -> Any:
        """Start summing an array over all ranks, in place."""
        if self._direct and not isinstance(array, np.ndarray):
            return self._launch_direct(array)
        return self._in_place(self._transport.start_sum, array)

    def start_maximum(self, array: Array) -> Any:
        """Start taking each element's maximum over all ranks, in place."""
        return self._in_place(self._transport.start_maximum, array)

    def start_broadcast(self, array: Array, root: int) -> Any:
        """Start copying the root's array over the others'."""
        return self._launch(
            lambda here: self._transport.start_broadcast(here[0], root),
            [array],
            crossing=[self._transport.rank == root],
            returning=[self._transport.rank != root],
        )

    def start_sum_at(self, root: int, array: Array, out: Array | None) -> Any:
        """Start summing the ranks' arrays into the root's `out`, which the others have none of."""
        arrays = [array] if out is None else [array, out]
        return self._launch(
            lambda here: self._transport.start_sum_at(root, here[0], None if out is None else here[1]),
            arrays,
            crossing=[True, False],
            returning=[False, True],
        )

    def start_gather(self, own: Array | None, out: Array, counts: list[int]) -> Any:
        """Start putting the ranks' pieces one after another into every rank's `out`; own None: it is in its place."""
        if own is not None:
            return self._launch(
                lambda here: self._transport.start_gather(here[0], here[1], counts),
                [own, out],
                crossing=[True, False],
                returning=[False, True],
            )
        rank = self._transport.rank
        mine = slice(sum(counts[:rank]), sum(counts[: rank + 1]))
        return self._launch(
            lambda here: self._transport.start_gather(None, here[0], counts),
            [out],
            crossing=[mine],
            returning=[True],
        )

    def start_scattered_sum(self, array: Array, own: Array, counts: list[int]) -> Any:
        """Start summing the ranks' arrays; of the sum each gets its piece in `own`."""
        return self._launch(
            lambda here: self._transport.start_scattered_sum(here[0], here[1], counts),
            [array, own],
            crossing=[True, False],
            returning=[False, True],
        )

    def sum(self, array: Array, what: str) -> None:
        """Sum an array over all ranks, in place."""
        self._transport.wait(self.start_sum(array), what)

    def advance(self) -> None:
        """Move on what is under way."""
        for operation in tuple(self._waiting):
            if not operation.started():
                break
            if operation.finished():
                self._waiting.remove(operation)

    # ---- the stages

    def _in_place(self, start: Callable[[Array], Any], array: Array) -> Any:
        return self._launch(lambda here: start(here[0]), [array], crossing=[True], returning=[True])

    def _launch(
        self,
        start: Callable[[Sequence[Array]], Any],
        arrays: Sequence[Array],
        crossing: Sequence[bool | slice],
        returning: Sequence[bool],
    ) -> Any:
        """`crossing`: which arrays' contents, or which part, the operation reads; `returning`: which it writes."""
        device, on_device = self._device, [not isinstance(array, np.ndarray) for array in arrays]
        if not any(on_device) and not self._waiting:
            return start(arrays)
        here = [self._pinned(a) if d else (a, device.event()) for a, d in zip(arrays, on_device, strict=True)]
        device.after(device.compute, device.leaving)
        for array, (host, _), part, there in zip(arrays, here, crossing, on_device, strict=False):
            if there and part is not False and array.size:
                piece = slice(0, array.size) if part is True else part
                array.reshape(-1)[piece].get(stream=device.leaving, out=host[piece], blocking=False)
        ready = device.event()
        ready.record(device.leaving)

        def end() -> None:
            device.after(device.compute, device.incoming)
            for array, (host, free), back, there in zip(arrays, here, returning, on_device, strict=False):
                if there and back and array.size:
                    array.reshape(-1).set(host, stream=device.incoming)
                if there:
                    free.record(device.incoming)
                    self._spare.setdefault((host.size, host.dtype.char), []).append((host, free))
            device.after(device.incoming, device.compute)

        return self._enqueue(Operation(self, lambda: start([host for host, _ in here]), end, ready))

    def _launch_direct(self, array: Array) -> Any:
        """Once the array is final on every rank, a blocking sum of the device's memory itself."""
        ready = self._device.event()
        ready.record(self._device.compute)
        transport = self._transport
        return self._enqueue(Operation(self, transport.start_barrier, lambda: transport.sum_now(array), ready))

    def _enqueue(self, operation: Operation) -> Operation:
        self._waiting.append(operation)
        self.advance()
        return operation

    def _pinned(self, array: Array) -> tuple[Array, Any]:
        """A flat host array of the same size, with the mark of its last copy."""
        spare = self._spare.get((array.size, array.dtype.char), [])
        if spare:
            host, free = spare.pop()
            free.synchronize()
            return host, free
        return self._device.pinned(array.size, array.dtype), self._device.event()
