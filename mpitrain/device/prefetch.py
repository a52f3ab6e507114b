"""Prefetching: the next minibatches are gathered while the current one is computed.

A loader takes requests for minibatches and returns them in that order. A corpus in memory is gathered on the spot: 256
windows of 23 x 23 take 0.1 to 0.2 ms, less than the hand-over from a thread costs on a busy core. A corpus on disk is
read by a thread (random windows: 33 ms per minibatch).
"""

import queue
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import cycle
from typing import Protocol

import numpy as np

from mpitrain.errors import Overdue
from mpitrain.flat import Array
from mpitrain.sampling.batch import Batch, Place, Samples
from mpitrain.start import DEADLINE

WAITS = 10  # waits per deadline: however long the process was suspended, only one of them is lost
Empty = Callable[[tuple[int, ...] | int, np.dtype | type], Array]  #: makes an array from shape and dtype


class Loader(Protocol):
    """Returns minibatches in the order in which they were requested."""

    @property
    def room(self) -> int:
        """How many more minibatches may be requested now."""

    def request(self, indices: Array, place: Place = None) -> None:
        """Request the samples `indices` int64 [n], the first at `place`. Raises RuntimeError if there is no room."""

    def take(self) -> Batch:
        """The oldest requested minibatch, valid until the next take. Raises the exception that gathering raised."""

    def stage(self) -> None:
        """Do work ahead of time while the device computes."""

    def close(self) -> None:
        """Stop, and drop minibatches that were requested but not taken."""


def open_loader(
    corpus: Samples, dtype: np.dtype, *, ahead: int = 2, deadline: float = DEADLINE, empty: Empty = np.empty
) -> Loader:
    """The loader that suits the corpus. `ahead`: minibatches requested before they are needed; `deadline`: in seconds;
    `empty` allocates the buffers."""
    if corpus.in_memory:
        return Direct(corpus, dtype, ahead, empty)
    return Prefetcher(corpus, dtype, ahead, deadline, empty)


class _Buffer:
    """The memory of a minibatch, which grows to the largest one."""

    def __init__(self, corpus: Samples, dtype: np.dtype, empty: Empty) -> None:
        self._corpus, self._dtype, self._empty = corpus, dtype, empty
        self._batch = corpus.form.room(0, dtype)

    def gather(self, indices: Array, place: Place) -> Batch:
        """Gather a minibatch into this memory."""
        count = len(indices)
        if len(self._batch.targets) < count:
            self._batch = self._corpus.form.room(count, self._dtype, self._empty)
        return self._corpus.gather(indices, self._batch.first(count), place)


class Direct:
    """Gathers each minibatch when it is taken."""

    def __init__(self, corpus: Samples, dtype: np.dtype, ahead: int, empty: Empty = np.empty) -> None:
        self._buffer, self._ahead = _Buffer(corpus, dtype, empty), ahead
        self._requested: deque[tuple[Array, Place]] = deque()

    @property
    def room(self) -> int:
        return self._ahead - len(self._requested)

    def request(self, indices: Array, place: Place = None) -> None:
        _require(self.room)
        self._requested.append((indices, place))

    def take(self) -> Batch:
        return self._buffer.gather(*self._requested.popleft())

    def stage(self) -> None:
        pass

    def close(self) -> None:
        self._requested.clear()


class Prefetcher:
    """Gathers in a thread, into a ring of `ahead` + 1 buffers: one is computed on while the others are filled.

    The thread ends with close(), with the program, and after the first error, which the next take() raises.
    """

    def __init__(self, corpus: Samples, dtype: np.dtype, ahead: int, deadline: float, empty: Empty = np.empty) -> None:
        self._part, self._deadline = corpus.part, deadline
        self._buffers = [_Buffer(corpus, dtype, empty) for _ in range(ahead + 1)]
        self._requested: queue.SimpleQueue[tuple[Array, Place]] = queue.SimpleQueue()
        self._ready: queue.SimpleQueue[Batch | BaseException] = queue.SimpleQueue()
        self._open, self.room = True, ahead
        self._thread = threading.Thread(target=self._work, name="prefetch", daemon=True)
        self._thread.start()

    def request(self, indices: Array, place: Place = None) -> None:
        _require(self.room)
        self.room -= 1
        self._requested.put((indices, place))

    def take(self) -> Batch:
        """See Loader. Raises Overdue if reading takes longer than the deadline."""
        if self.room == len(self._buffers) - 1:
            raise RuntimeError("take() of a minibatch that nobody asked for")
        for _ in range(WAITS):
            with suppress(queue.Empty):
                batch = self._ready.get(timeout=self._deadline / WAITS)
                break
        else:
            raise Overdue(f"reading {self._part} took longer than {self._deadline:g} s (run.deadline)")
        if isinstance(batch, BaseException):
            self._ready.put(batch)  # for the next take, too
            raise batch
        self.room += 1
        return batch

    def stage(self) -> None:
        pass

    def close(self) -> None:
        """Wait for a read in progress, at most until the deadline."""
        self._open = False
        self._requested.put((np.empty(0, np.int64), None))  # which wakes the thread
        self._thread.join(self._deadline)

    def _work(self) -> None:
        try:
            for buffer in cycle(self._buffers):  # `room` ensures that its last batch was taken, and another one after
                requested = self._requested.get()
                if not self._open:
                    raise RuntimeError("take() from a closed loader")
                self._ready.put(buffer.gather(*requested))
        except BaseException as error:  # raised again where the minibatch is taken
            self._ready.put(error)


def _require(room: int) -> None:
    if room <= 0:
        raise RuntimeError("request() of more minibatches than are read ahead")
