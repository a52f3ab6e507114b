"""Parts of a gradient, summed over ranks in larger buckets while backward computes the other parts."""

from collections.abc import Callable, Iterator

from mpitrain.flat import Array
from mpitrain.mpi.communicator import Request


class Buckets:
    """Collects parts of a vector that become final, last layers first, into buckets of at least this many megabytes.

    `start` starts the sum of a bucket. The parts, and so the buckets, are the same on all ranks of one network.
    """

    def __init__(self, megabytes: float, vector: Array, start: Callable[[slice], Request]) -> None:
        self._size, self._start = max(int(megabytes * 1e6) // vector.itemsize, 1), start
        self._pending: slice | None = None
        self._in_flight: list[tuple[Request, slice]] = []

    def add(self, part: slice) -> None:
        """Take a part in; start its bucket once it is full, and let the sums in progress advance."""
        pending = part if self._pending is None else slice(part.start, self._pending.stop)
        self._pending = pending
        if pending.stop - pending.start >= self._size:
            self._begin(pending)
        for request, _ in self._in_flight:
            request.Test()

    def drain(self) -> Iterator[tuple[Request, slice]]:
        """Start the last bucket; yields the requests of all buckets, with their parts, in the order of their start."""
        if self._pending is not None:
            self._begin(self._pending)
        started, self._in_flight = self._in_flight, []
        yield from started

    def _begin(self, part: slice) -> None:
        self._in_flight.append((self._start(part), part))
        self._pending = None
