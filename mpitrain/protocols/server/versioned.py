"""Memory for a centre Θ that a master rewrites: where Θ and the workers' gradients lie, and how Θ is read meanwhile.

- `shared`: one node. Θ and every worker's gradient lie in shared memory; nothing is copied but Θ by its reader.
- `one-sided`: several nodes whose MPI serves gets while the target computes. Θ is read by Rget; gradients are messages.
- `messages`: neither. Θ is sent on request, between two updates. A CUDA-aware MPI takes the vectors from GPU memory.

Consistency is a sequence lock: the version is 2i when Θ_i is whole and odd while it is written. A reader takes version,
Θ, version, and tries again on a change (Zhang 2013: "if being updated, waits and retries"); no reader can block the
master.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from mpitrain.device.cpu import CPU, Cpu
from mpitrain.flat import Array
from mpitrain.mpi import Traffic, Transport
from mpitrain.mpi.windows import Segments

HEADER = 64  # bytes before the vector: the version, on a cache line of its own


class Memory:
    """One rank's memory for the exchange. This class is that of exchange by messages: other ranks cannot read Θ in it.

    `theta` is Θ, meaningful on the master only; in `gradient` this worker sums its gradients, and the master receives
    them.
    """

    theta: Array
    gradient: Array
    over_network = False  # whether reading Θ takes the network

    def __init__(self, transport: Transport, size: int, dtype: np.dtype, master: int, device: Cpu) -> None:
        to_device = device.to_device if device.direct else CPU.to_device
        self.theta = to_device(device.host_zeros(size if transport.rank == master else 0, dtype))
        self.gradient = to_device(device.host_zeros(size, dtype))

    @contextmanager
    def writing(self, index: int) -> Iterator[None]:
        """Context in which the master changes Θ from index − 1 to index."""
        yield

    def read(self, out: Array) -> int | None:
        """Copy Θ to `out`; returns its index, or None if Θ was being written or cannot be read directly."""
        return None

    def handed_over(self, worker: int) -> Array | None:
        """A worker's gradient, if the master can read it in the worker's memory; None if it comes by message."""
        return None

    def close(self) -> None:
        """Free the memory. Collective, at a clean end."""


class Versioned(Memory):
    """The sequence lock over a segment: version word, then the vector."""

    def __init__(self, segment: Array, dtype: np.dtype, memory: Segments, traffic: Traffic) -> None:
        self._memory, self._traffic = memory, traffic
        self._version = segment[:8].view(np.int64)
        self.theta = segment[HEADER:].view(dtype)

    @contextmanager
    def writing(self, index: int) -> Iterator[None]:
        self._version[0] = 2 * index - 1
        self._memory.sync()
        yield
        self._memory.sync()
        self._version[0] = 2 * index
        self._memory.sync()

    def read(self, out: Array) -> int | None:
        before = self._version_seen()
        if before % 2:
            return None
        self._memory.sync()  # else ARM and POWER may load Θ before the version
        self._copy(out)
        self._traffic.bytes_received += out.nbytes
        self._memory.sync()
        return before // 2 if self._version_seen() == before else None

    def _version_seen(self) -> int:
        raise NotImplementedError

    def _copy(self, out: Array) -> None:
        raise NotImplementedError

    def close(self) -> None:
        del self._version, self.theta
        self._memory.close()


class SharedMemory(Versioned):
    """Memory of ranks on one node, accessed by loads and stores."""

    def __init__(self, transport: Transport, size: int, dtype: np.dtype, master: int) -> None:
        memory = Segments(transport, HEADER + size * dtype.itemsize, shared=True)
        super().__init__(memory.segment(master), dtype, memory, transport.traffic)
        self.gradient = self.handed_over(transport.rank)
        self._pace = transport.runtime.pace

    def _version_seen(self) -> int:
        self._memory.sync()
        return int(self._version[0])

    def _copy(self, out: Array) -> None:
        np.copyto(out, self.theta)
        self._pace.work("copy", out.nbytes)

    def handed_over(self, worker: int) -> Array:
        self._memory.sync()
        return self._memory.segment(worker)[HEADER:].view(self.theta.dtype)

    def close(self) -> None:
        del self.gradient
        super().close()


class RemoteMemory(Versioned):
    """Memory of ranks on several nodes, read by one-sided gets (within a node MPI makes these plain loads)."""

    def __init__(self, transport: Transport, size: int, dtype: np.dtype, master: int, device: Cpu = CPU) -> None:
        self._master, self.over_network = master, transport.nodes > 1
        memory = Segments(transport, HEADER + (size * dtype.itemsize if transport.rank == master else 0))
        super().__init__(memory.own, dtype, memory, transport.traffic)
        self.gradient = device.host_zeros(size, dtype)

    def _version_seen(self) -> int:
        return self._memory.word(self._master, 0)

    def _copy(self, out: Array) -> None:
        self._memory.read(self._master, HEADER, out)


def open_memory(transport: Transport, how: str, size: int, dtype: np.dtype, master: int, device: Cpu = CPU) -> Memory:
    """Memory for `size` elements on `master`. Collective over all ranks.

    Its vectors are in host memory; for exchange by messages, if MPI takes vectors from there, on the `device`.
    """
    if how == "shared":
        return SharedMemory(transport, size, dtype, master)
    if how == "one-sided":
        return RemoteMemory(transport, size, dtype, master, device)
    return Memory(transport, size, dtype, master, device)
