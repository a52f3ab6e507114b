"""Memory that the ranks of a node share, in files without a name: a job that ends in any way leaves nothing of them.

Unlike windows, they need no room in /dev/shm, of which containers often have 64 MB, and no collective call at the end.
"""

import fcntl
import mmap
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from weakref import finalize

import numpy as np
from numpy.typing import DTypeLike

from mpitrain.errors import BadInput, naming
from mpitrain.flat import Array
from mpitrain.mpi.agreement import agreed
from mpitrain.mpi.transport import Transport

WHAT = "the node's memory"
PATIENCE = 10.0  # seconds that a rank waits for the lock; a holder may need some to order 10⁸ samples, or is frozen
POLL_INTERVAL = 5e-4  # seconds


class NodeMemory:
    """This rank's view of its node's memory; `part` and `parts` as in `mpitrain.data.sharing`.

    The first rank of a node makes the files, and the others open them through that process's folder in /proc. All
    ranks make their views together. Some ranks cannot open the files, such as those in separate containers: then all
    ranks raise BadInput.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport, self.part, self.parts = transport, transport.local_rank, transport.local_size
        self._lock = self._file(1)
        finalize(self, os.close, self._lock)

    def array(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """Memory, full of zeros, that all ranks of a node address. Collective; raises BadInput in all."""
        dtype = np.dtype(dtype)
        nbytes = prod(shape) * dtype.itemsize
        file = self._file(max(nbytes, 1))
        try:
            memory = agreed(self._transport, lambda: _mapped(file, max(nbytes, 1)), WHAT)
        finally:
            os.close(file)  # not before all have opened it
        return np.frombuffer(memory, np.uint8, nbytes).view(dtype).reshape(shape)

    def together(self, action: Callable[[], object]) -> None:
        """Call `action`, as every rank does, and wait for the others. Collective; raises BadInput in all."""
        agreed(self._transport, action, "the data")

    @contextmanager
    def locked(self) -> Iterator[bool]:
        """A context that no other process is in; False if another has not left it in time. The kernel takes the lock
        from a process that dies."""
        until = time.monotonic() + PATIENCE
        while not self._take():
            if time.monotonic() > until:
                yield False
                return
            self._transport.heartbeat()
            time.sleep(POLL_INTERVAL)
        try:
            yield True
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _take(self) -> bool:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _file(self, size: int) -> int:
        """The descriptor of a file of `size` bytes in memory. Collective; raises BadInput in all."""
        transport, own = self._transport, list[int]()

        def make() -> str:
            if not transport.leader:
                return ""
            with naming(WHAT):
                own.append(os.memfd_create("mpitrain"))
                os.ftruncate(own[0], size)
            return f"/proc/{os.getpid()}/fd/{own[0]} {os.fstat(own[0]).st_ino}"

        def reach(told: str) -> None:
            if not transport.leader:
                own.append(_opened(told, size))

        try:
            told = transport.gather_texts(agreed(transport, make, WHAT), WHAT)
            agreed(transport, lambda: reach(told[transport.node_leaders[transport.rank]]), WHAT)
        except BadInput:
            for file in own:
                os.close(file)
            raise
        return own[0]


def _opened(told: str, size: int) -> int:
    """Open the file that a leader has named. Raises BadInput if it is another file, or cannot be reached."""
    path, _, inode = told.partition(" ")
    with naming(path):
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    found = os.fstat(file)
    if (found.st_ino, found.st_size) != (int(inode or 0), size):
        os.close(file)
        raise BadInput(f"{path}: is not the memory of this node's first rank")
    return file


def _mapped(file: int, size: int) -> mmap.mmap:
    with naming(WHAT):
        return mmap.mmap(file, size)
