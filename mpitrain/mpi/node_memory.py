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

import numpy as np
from numpy.typing import DTypeLike

from mpitrain.errors import BadInput
from mpitrain.flat import Array
from mpitrain.mpi.agreement import agreed
from mpitrain.mpi.transport import Transport

PATIENCE = 10.0  # seconds that a rank waits for the lock, which only one that is frozen keeps for longer
NAP = 5e-4  # seconds between two looks


class NodeMemory:
    """This rank's view of its node's memory; `part` and `parts` as in `mpitrain.data.sharing`.

    The first rank of a node makes the files, the others open them by its process's folder in /proc. Collective over all
    ranks; raises BadInput in all of them where one does not reach its leader's: in containers of their own, say.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport, self.part, self.parts = transport, transport.local_rank, transport.local_size
        self._lock = self._file(1)

    def array(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """Memory that all of them address, full of zeros. Collective."""
        dtype = np.dtype(dtype)
        nbytes = prod(shape) * dtype.itemsize
        file = self._file(max(nbytes, 1))
        memory = np.frombuffer(mmap.mmap(file, max(nbytes, 1)), np.uint8, nbytes)
        agreed(self._transport, lambda: None, "the node's memory")  # until then it is the leader's alone
        os.close(file)
        return memory.view(dtype).reshape(shape)

    def together(self, action: Callable[[], object]) -> None:
        """Call `action` in each of them, and wait for the others. Collective; raises BadInput in all."""
        agreed(self._transport, action, "the data")

    @contextmanager
    def locked(self) -> Iterator[bool]:
        """A context that no other process is in; False where one has not left it in time. The kernel takes the lock
        from a process that dies."""
        until = time.monotonic() + PATIENCE
        while not self._take():
            if time.monotonic() > until:
                yield False
                return
            time.sleep(NAP)
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
        """The descriptor of a file of `size` bytes in memory."""
        file, told, transport = -1, "", self._transport
        if transport.leader:
            file = os.memfd_create("mpitrain")
            os.ftruncate(file, size)
            told = f"/proc/{os.getpid()}/fd/{file} {os.fstat(file).st_ino}"
        told = transport.gather_texts(told, "the node's memory")[transport.node_leaders[transport.rank]]
        return agreed(transport, lambda: file if transport.leader else _opened(told), "the node's memory")


def _opened(told: str) -> int:
    """The file that a leader tells of. Raises BadInput if it is another one, or cannot be reached."""
    path, _, inode = told.partition(" ")
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error
    if os.fstat(file).st_ino != int(inode):
        os.close(file)
        raise BadInput(f"{path}: belongs to another process")
    return file
