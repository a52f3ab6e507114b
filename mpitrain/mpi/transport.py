"""A rank's whole view of its communicator."""

import copy
import itertools
import os
from collections.abc import Callable

import numpy as np

from mpitrain.mpi.collectives import Collectives
from mpitrain.mpi.communicator import Communicator
from mpitrain.mpi.launcher import MPI
from mpitrain.mpi.messages import Messages
from mpitrain.mpi.windows import Segments
from mpitrain.mpi.witness import Witness
from mpitrain.mpi.witnessed import WitnessedCommunicator
from mpitrain.start import threads_of

PROBE = 64  # bytes


class Transport(Messages, Collectives):
    """Messages, collectives, windows."""

    def threads(self, configured: int) -> int:
        """Number of threads per rank: run.threads, else what the environment says (`start.THREADS`), else its share of
        the cores it may use. Simulated ranks have one, or as many as those whose training they replay."""
        return self.runtime.threads or configured or threads_of(os.environ) or self.cores

    def duplicate(self) -> "Transport":
        """The same ranks, clock and counts, with collectives that are matched apart from this one's. Collective."""
        duplicate = copy.copy(self)
        duplicate.comm, request = self.comm.Idup()
        self.wait(request, "a communicator")
        duplicate.numbers = itertools.count()
        duplicate.carrier = self.carrier.duplicate(duplicate)
        return duplicate

    def witnessed(self, witness: Witness) -> "Transport":
        """The same ranks, clock and counts; probes and tests go through a witness."""
        witnessed = copy.copy(self)
        witnessed.comm = WitnessedCommunicator(self.comm, witness)
        return witnessed

    def first(self, count: int) -> "Transport | None":
        """The first ranks, which go on giving heartbeats to all and hearing from all; None on the others. Collective,
        blocks."""
        comm = self.split(int(self.rank >= count))
        if self.rank >= count:
            return None
        part = Transport(comm, self.deadline, self.runtime)
        part.heartbeats, part.waking = self.heartbeats, self.waking
        return part

    def split(self, color: int) -> Communicator:
        """A communicator of the ranks with one colour. Collective, blocks."""
        self.barrier("a communicator")
        with self.blocking("MPI_Comm_split"):
            return self.comm.Split(color)

    def local_barrier(self, what: str) -> None:
        """Wait for the ranks of this node."""
        self.wait(self._local.Ibarrier(), what)

    def leader_first(self, action: Callable[[], object], what: str) -> None:
        """Do what calls no MPI on the first rank of each node, where it fills a cache, then on the others, which read
        it. Collective."""
        for leaders in (True, False):
            if self.leader is leaders:
                with self.working():
                    action()
            if leaders:
                self.local_barrier(what)

    def has_shared_memory(self, nbytes: int) -> bool:
        """Whether every node has room for this many bytes of shared memory; containers often have 64 MB. An MPI that
        finds none may end without a word. Collective."""
        lacking = np.array([nbytes > self.runtime.shared_memory_left()], dtype=np.int64)
        self.wait(self.comm.Iallreduce(MPI.IN_PLACE, lacking, MPI.MAX), "the room in shared memory")
        return not lacking[0]

    def progresses_passively(self, step: float = 0.025) -> bool:
        """Whether a get completes while its target is outside MPI. Rank 0 sleeps three steps (seconds); the others read
        in the second one, as rank 0 may leave the barrier a little later than they, so few bytes that the answers to
        many ranks pass a slow link in that time."""
        memory, taken = Segments(self, PROBE), np.zeros(1)
        self.barrier("the probe of passive progress")
        if self.rank == 0:
            self.sleep(3 * step)
        else:
            self.sleep(step)
            start = self.clock()
            memory.read(0, 0, np.empty(PROBE, dtype=np.uint8))
            taken[0] = self.clock() - start
        self.wait(self.comm.Iallreduce(MPI.IN_PLACE, taken, MPI.MAX), "the probe of passive progress")
        memory.close()
        return bool(taken[0] < step)
