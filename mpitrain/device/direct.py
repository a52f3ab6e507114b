"""A transport that passes arrays in GPU memory to a CUDA-aware MPI.

MPI does not know streams. Before it may read or overwrite an array, the kernels launched so far must have run; the data
of a completed request are visible to every kernel that is launched afterwards.
"""

import numpy as np

from mpitrain.device.chunked_collectives import ChunkedCollective, ChunkedCollectives, Shares, Steps
from mpitrain.device.collectives import StagedTransport, pieces_of
from mpitrain.device.gpu_memory import GpuMemory
from mpitrain.flat import Array
from mpitrain.mpi import Transport
from mpitrain.mpi.communicator import Request


class DirectTransport(StagedTransport):
    """Messages and collectives of device arrays. Host arrays and bytes are passed on unchanged."""

    def __init__(self, transport: Transport, device: GpuMemory) -> None:
        super().__init__(transport, device)
        self._chunked = ChunkedCollectives(transport, device)

    def send(self, to: int, tag: int, buffer: bytes | Array) -> Request:
        """Start to send a contiguous buffer. It must not be changed until the request has completed."""
        self._settle(buffer)
        return self._transport.send(to, tag, buffer)

    def receive_into(self, source: int, tag: int, buffer: Array, what: str) -> None:
        """Wait for a message of exactly the buffer's length. Raises ValueError if it has another length."""
        self._settle(buffer)
        self._transport.receive_into(source, tag, buffer, what)

    def start_receive(self, source: int, tag: int, buffer: Array) -> Request:
        """Start to receive a message of the buffer's length from one rank."""
        self._settle(buffer)
        return self._transport.start_receive(source, tag, buffer)

    def begin_sum(self, array: Array) -> Request:
        if isinstance(array, np.ndarray):
            return super().begin_sum(array)
        return self._begin(self._chunked.reduced(array.reshape(-1), np.add))

    def begin_maximum(self, array: Array) -> Request:
        if isinstance(array, np.ndarray):
            return super().begin_maximum(array)
        return self._begin(self._chunked.reduced(array.reshape(-1), np.maximum))

    def begin_broadcast(self, array: Array, root: int) -> Request:
        if isinstance(array, np.ndarray):
            return super().begin_broadcast(array, root)
        return self._begin(self._chunked.broadcast(array.reshape(-1), root))

    def begin_reduce(self, root: int, array: Array, out: Array | None) -> Request:
        if isinstance(array, np.ndarray):
            return super().begin_reduce(root, array, out)
        return self._begin(self._chunked.reduced_at(root, array.reshape(-1), None if out is None else out.reshape(-1)))

    def begin_gather(self, own: Array | None, out: Array, counts: list[int]) -> Request:
        if isinstance(out, np.ndarray):
            return super().begin_gather(own, out, counts)
        flat = None if own is None else own.reshape(-1)
        return self._begin(self._chunked.gathered(flat, out.reshape(-1), self._by_rank(counts)))

    def begin_reduce_scatter(self, array: Array, own: Array, counts: list[int]) -> Request:
        if isinstance(array, np.ndarray):
            return super().begin_reduce_scatter(array, own, counts)
        return self._begin(self._chunked.scattered(array.reshape(-1), own.reshape(-1), self._by_rank(counts)))

    def _by_rank(self, counts: list[int]) -> Shares:
        return dict(zip(self._transport.members, pieces_of(counts), strict=True))

    def _begin(self, steps: Steps) -> Request:
        return self._enqueue(ChunkedCollective(self.advance, steps))

    def _settle(self, buffer: bytes | Array) -> None:
        if not isinstance(buffer, (bytes, np.ndarray)):
            self._device.compute.synchronize()
