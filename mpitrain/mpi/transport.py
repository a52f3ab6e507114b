"""A rank's whole view of its communicator."""

import copy
import os
import time
from collections.abc import Callable

import numpy as np

from mpitrain.mpi.collectives import Collectives
from mpitrain.mpi.messages import Messages
from mpitrain.mpi.start import MPI
from mpitrain.mpi.windows import RemoteSegments, SharedSegments, SummingSegments

YIELDING = 0.2  # seconds; longer waits are for a rank that does something else, such as an evaluation


class Transport(Messages, Collectives):
    """Who is where, messages, collectives, windows."""

    def __init__(
        self,
        comm: MPI.Intracomm | None = None,
        deadline: float = 300.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(comm, deadline, clock, sleep)
        self._in_flight = []
        local = self.comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.local_rank, self.local_size = local.rank, local.size
        self.leader = bool(local.rank == 0)
        self.nodes = self._sum_of_small(int(self.leader))
        self._local = local
        self.yielding = YIELDING if local.size <= (os.cpu_count() or 1) else 0.0

    def twin(self) -> "Transport":
        """The same ranks, clock and counts, with collectives that are matched apart from this one's. Collective."""
        twin = copy.copy(self)
        twin.comm = self.comm.Dup()
        return twin

    def local_barrier(self, what: str) -> None:
        """Wait for the ranks of this node."""
        self.wait(self._local.Ibarrier(), what)

    def shared_segments(self, size: int) -> SharedSegments:
        """Memory that the ranks of the one node address directly. Collective."""
        return SharedSegments(self, size)

    def remote_segments(self, size: int) -> RemoteSegments:
        """Memory that the other ranks read one-sidedly. Collective."""
        return RemoteSegments(self, size)

    def summing_segments(self, size: int) -> SummingSegments:
        """Memory that the other ranks read and add to one-sidedly. Collective."""
        return SummingSegments(self, size)

    def progresses_passively(self, nap: float = 0.05) -> bool:
        """Whether a get completes while its target is outside MPI: rank 0 sleeps `nap` seconds, the others read."""
        memory, taken = self.remote_segments(4096), np.zeros(1)
        self.barrier("the probe of passive progress")
        if self.rank == 0:
            self.sleep(nap)
        else:
            start = self.clock()
            memory.read(0, 0, np.empty(4096, dtype=np.uint8))
            taken[0] = self.clock() - start
        self.wait(self.comm.Iallreduce(MPI.IN_PLACE, taken, MPI.MAX), "the probe of passive progress")
        memory.close()
        return bool(taken[0] < nap / 2)

    def _sum_of_small(self, value: int) -> int:
        total = np.array([value], dtype=np.int64)
        self.wait(self.comm.Iallreduce(MPI.IN_PLACE, total), "the start")
        return int(total[0])
