"""Where the server's Θ lives and how vectors travel between it and the workers. Three ways with one face:

- `shared`: one node. Θ and every worker's gradient lie in shared memory; nothing is copied but Θ by its reader.
- `one-sided`: several nodes whose MPI serves gets while the target computes. Θ is read by Rget; gradients are messages.
- `messages`: neither. Θ is sent on request, between two updates. A CUDA-aware MPI takes the vectors from GPU memory.

Consistency is a sequence lock: the version is 2i when Θ_i is whole and odd while it is written. A reader takes version,
Θ, version, and tries again on a change (Zhang 2013: "if being updated, waits and retries"); no reader can block the
server. A reader that fails three times asks by message.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from mpitrain.device.cpu import CPU, Cpu
from mpitrain.flat import Array

if TYPE_CHECKING:
    from mpitrain.mpi import RemoteSegments, SharedSegments, Transport

HEADER = 64  # bytes before the vector: the version, on a cache line of its own


class Centre(Protocol):
    """One rank's side of the vectors' exchange."""

    how: str
    theta: Array  # the server's Θ; meaningful on the master only
    gradient: Array  # where this worker sums its gradients, and the master receives them

    def writing(self, index: int) -> Any:
        """Context in which the master changes Θ from index − 1 to index."""

    def read(self, out: Array) -> int | None:
        """Copy Θ; its index, or None when it was being written or this way has no direct read."""

    def handed_over(self, worker: int) -> Array | None:
        """The gradient of a worker where the master can see it, None when it comes by message."""

    def close(self) -> None:
        """Collective, at a clean end."""


def choose(transport: "Transport", wanted: str, direct: bool, shared: int = 0) -> str:
    """The way to exchange vectors: `run.exchange`, or for "auto" what the ranks' places and the probe allow.

    `direct`: MPI takes them from GPU memory, of which windows would need a copy on the host. `shared`: the bytes that
    windows would take of this node's shared memory. Collective.
    """
    if wanted != "auto":
        return wanted
    if direct or not transport.has_shared_memory(shared):
        return "messages"
    if transport.nodes == 1:
        return "shared"
    return "one-sided" if transport.progresses_passively() else "messages"


def open_centre(transport: "Transport", how: str, size: int, dtype: np.dtype, master: int, device: Cpu = CPU) -> Centre:
    """The centre of `size` elements on `master`. Collective over all ranks.

    Its vectors lie in host memory; by message, if MPI takes them from there, on the `device`.
    """
    if how == "shared" and transport.size > 1:
        return SharedCentre(transport, size, dtype, master)
    if how == "one-sided" and transport.size > 1:
        return RemoteCentre(transport, size, dtype, master)
    return MessageCentre(transport, size, dtype, master, device)


class _Versioned:
    """The writer's half of the sequence lock over a segment: version word, then the vector."""

    def _lay_out(self, segment: Array, dtype: np.dtype, memory: "SharedSegments | RemoteSegments") -> None:
        self._memory = memory
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

    def close(self) -> None:
        del self._version, self.theta
        self._memory.close()


class SharedCentre(_Versioned):
    """One node: loads and stores."""

    how = "shared"

    def __init__(self, transport: "Transport", size: int, dtype: np.dtype, master: int) -> None:
        memory = transport.shared_segments(HEADER + size * dtype.itemsize)
        self._segments, self._dtype = memory, dtype
        self._lay_out(memory.segment(master), dtype, memory)
        self.gradient = memory.segment(transport.rank)[HEADER:].view(dtype)
        self._traffic = transport.traffic

    def read(self, out: Array) -> int | None:
        self._memory.sync()
        before = int(self._version[0])
        if before % 2:
            return None
        self._memory.sync()  # else ARM and POWER may load Θ before the version
        np.copyto(out, self.theta)
        self._traffic.bytes_received += out.nbytes
        self._memory.sync()
        return before // 2 if int(self._version[0]) == before else None

    def handed_over(self, worker: int) -> Array:
        self._memory.sync()
        return self._segments.segment(worker)[HEADER:].view(self._dtype)

    def close(self) -> None:
        del self.gradient
        super().close()


class RemoteCentre(_Versioned):
    """Several nodes: one-sided gets."""

    how = "one-sided"

    def __init__(self, transport: "Transport", size: int, dtype: np.dtype, master: int) -> None:
        nbytes = HEADER + size * dtype.itemsize
        memory = transport.remote_segments(nbytes if transport.rank == master else HEADER)
        self._remote, self._master, self._traffic = memory, master, transport.traffic
        self._lay_out(memory.own, dtype, memory)
        self.gradient = np.zeros(size, dtype)
        self._seen = np.zeros(1, dtype=np.int64)

    def read(self, out: Array) -> int | None:
        before = self._version_seen()
        if before % 2:
            return None
        self._memory.sync()  # ranks of one node read by plain loads
        self._remote.read(self._master, HEADER, out)
        self._traffic.bytes_received += out.nbytes
        self._memory.sync()
        return before // 2 if self._version_seen() == before else None

    def _version_seen(self) -> int:
        self._remote.read(self._master, 0, self._seen)
        return int(self._seen[0])

    def handed_over(self, worker: int) -> None:
        return None


class MessageCentre:
    """No direct reads: Θ in the master's own memory."""

    how = "messages"

    def __init__(self, transport: "Transport", size: int, dtype: np.dtype, master: int, device: Cpu) -> None:
        to_device = device.to_device if device.direct else CPU.to_device
        self.theta = to_device(np.zeros(size if transport.rank == master else 0, dtype))
        self.gradient = to_device(np.zeros(size, dtype))

    @contextmanager
    def writing(self, index: int) -> Iterator[None]:
        yield

    def read(self, out: Array) -> None:
        return None

    def handed_over(self, worker: int) -> None:
        return None

    def close(self) -> None:
        pass
