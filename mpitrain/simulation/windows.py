"""Windows of simulated ranks: memory that the others read, add to and swap words of without their help."""

from collections import defaultdict
from collections.abc import Callable

import numpy as np

from mpitrain.flat import Array
from mpitrain.mpi.communicator import Request as Started
from mpitrain.mpi.launcher import MPI, BufSpec, TargetSpec
from mpitrain.simulation.collectives import ufunc
from mpitrain.simulation.communicator import SimulatedCommunicator
from mpitrain.simulation.messages import SimulatedRequest, flat, raw


class SimulatedWindow:
    """One rank's handle of a window with `size` bytes on this rank, made when all ranks of the communicator have come.

    Operations take effect at their target when they arrive there, each at once as a whole.
    """

    def __init__(self, size: int, communicator: SimulatedCommunicator) -> None:
        self._memories, self._communicator = communicator.shared(), communicator
        self._memories[communicator.rank] = np.zeros(size, dtype=np.uint8)
        self._under_way = defaultdict[int, list[SimulatedRequest]](list)  # by rank
        sizes = np.zeros(communicator.size, dtype=np.int64)
        communicator.finish(communicator.Iallgather(np.array([size], dtype=np.int64), sizes), "the others' windows")

    def Lock_all(self, assertion: int, /) -> None:
        """Do nothing: nothing has to be locked."""

    def Unlock_all(self) -> None:
        self.Flush_all()

    def Sync(self) -> None:
        """Wake ranks that share the memory, as they may see a change now."""
        self._communicator.look()

    def Free(self) -> None:
        self._communicator.finish(self._communicator.Ibarrier(), "the others to free a window")

    def tomemory(self) -> Array:
        return self._memories[self._communicator.rank]

    def Shared_query(self, rank: int, /) -> tuple[Array, int]:
        return self._memories[rank], 1

    def Rget(self, origin: BufSpec, rank: int, target: TargetSpec, /) -> Started:
        out = raw(origin)
        place = self._target(rank, target, out.size)
        return self._start(rank, out.size, lambda: np.copyto(out, place), fetches=True)

    def Raccumulate(self, origin: BufSpec, rank: int, target: TargetSpec, operation: MPI.Op, /) -> Started:
        term = flat(origin)
        place = self._target(rank, target, term.nbytes).view(term.dtype)
        return self._start(rank, term.nbytes, lambda: ufunc(operation)(place, term, out=place))

    def Compare_and_swap(self, origin: Array, compare: Array, result: Array, rank: int, at: int, /) -> None:
        word = self._memories[rank][at : at + origin.nbytes].view(origin.dtype)
        new, expected = origin.copy(), compare.copy()

        def swap() -> None:
            np.copyto(result, word)
            if result == expected:
                np.copyto(word, new)

        self._start(rank, origin.nbytes, swap)

    def Flush(self, rank: int, /) -> None:
        for request in self._under_way.pop(rank, ()):
            self._communicator.finish(request, f"one-sided operations on rank {rank}")

    def Flush_all(self) -> None:
        for rank in sorted(self._under_way):
            self.Flush(rank)

    def _target(self, rank: int, target: TargetSpec, nbytes: int) -> Array:
        where: Array = target  # offset, count, type
        at = int(where[0])
        place = self._memories[rank][at : at + nbytes]
        if place.size < nbytes:
            raise MPI.Exception(MPI.ERR_RMA_RANGE)
        return place

    def _start(self, rank: int, nbytes: int, effect: Callable[[], object], fetches: bool = False) -> SimulatedRequest:
        request = self._communicator.later(nbytes, rank, effect, fetches)
        self._under_way[rank] = [*(each for each in self._under_way[rank] if not each.done), request]
        return request
