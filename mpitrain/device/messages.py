"""Messages whose vectors a CUDA-aware MPI takes from GPU memory, or puts there.

MPI knows no streams. So before it may read a vector or write over one, the kernels launched so far have run; and what
a completed request has brought is there for every kernel launched afterwards.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from mpitrain.flat import Array

if TYPE_CHECKING:
    from mpitrain.device.gpu import Gpu
    from mpitrain.mpi import Transport


class DirectMessages:
    """The part of a transport that sends and receives. Host arrays and bytes go as they are."""

    _transport: "Transport"
    _device: "Gpu"

    def send(self, to: int, tag: int, buffer: Any) -> Any:
        """Start sending a contiguous buffer. It must stay untouched until the request has completed."""
        self._settle(buffer)
        return self._transport.send(to, tag, buffer)

    def receive_into(self, source: int, tag: int, buffer: Array, what: str) -> None:
        """Wait for a message of exactly the buffer's length. Raises ValueError when it has another."""
        self._settle(buffer)
        self._transport.receive_into(source, tag, buffer, what)

    def start_receive(self, source: int, tag: int, buffer: Array) -> Any:
        """Start receiving a message of the buffer's length from one rank."""
        self._settle(buffer)
        return self._transport.start_receive(source, tag, buffer)

    def _settle(self, buffer: Any) -> None:
        if not isinstance(buffer, (bytes, np.ndarray)):
            self._device.compute.synchronize()
