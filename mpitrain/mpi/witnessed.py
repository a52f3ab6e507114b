"""A rank's probes, tests and checks for stop requests, passed through a witness, which records or replays them.

Whatever else a rank does follows from its input. No decision depends on when a `Transport.wait`, a collective or a
heartbeat ends, so these are not witnessed; barriers are, since ranks do other things before they end.
"""

from mpitrain.mpi.communicator import Communicator, Matched, Receive, Request
from mpitrain.mpi.launcher import MPI, BufSpec
from mpitrain.mpi.witness import Witness
from mpitrain.signals import Stop


class WitnessedStop(Stop):
    """A stop request that is checked through a witness."""

    def __init__(self, stop: Stop, witness: Witness) -> None:
        self._stop, self._witness, self._seen = stop, witness, False

    @property
    def flag(self) -> bool:
        if not self._seen:
            self._seen = self._witness.stopped(self._stop.flag)
        return self._seen

    @flag.setter
    def flag(self, value: bool) -> None:
        self._seen = value

    def ask(self) -> None:
        self._stop.ask()


class WitnessedRequest:
    """A send, a receive or a barrier. `memory`: the buffer of a receive."""

    def __init__(self, plain: Receive | Request, witness: Witness, memory: BufSpec | None = None) -> None:
        self.plain, self._witness, self._memory = plain, witness, memory

    def Test(self, status: MPI.Status | None = None, /) -> bool:  # named as in MPI's requests
        told = () if status is None else (status,)
        done = self._witness.happened(lambda: self.plain.Test(*told))
        if done and self._memory is not None:
            self._witness.content(self._memory)
            self._memory = None
        return done


class WitnessedMessage:
    """A message that a probe has matched."""

    def __init__(self, plain: Matched, witness: Witness) -> None:
        self._plain, self._witness = plain, witness

    def Recv(self, buffer: BufSpec, /) -> None:
        self._plain.Recv(buffer)
        self._witness.content(buffer)

    def Irecv(self, buffer: BufSpec, /) -> Receive:
        return WitnessedRequest(self._plain.Irecv(buffer), self._witness, buffer)


class WitnessedCommunicator:
    """A communicator whose probes and tests go through a witness; communicators made from it have none."""

    def __init__(self, plain: Communicator, witness: Witness) -> None:
        self.plain, self._witness = plain, witness
        self.rank, self.size = plain.rank, plain.size
        self.Ibcast, self.Ireduce, self.Iallreduce = plain.Ibcast, plain.Ireduce, plain.Iallreduce
        self.Ireduce_scatter = plain.Ireduce_scatter
        self.Iallgather, self.Iallgatherv = plain.Iallgather, plain.Iallgatherv
        self.Split, self.Split_type, self.Idup = plain.Split, plain.Split_type, plain.Idup

    def Isend(self, buffer: BufSpec, to: int, tag: int, /) -> Request:
        return WitnessedRequest(self.plain.Isend(buffer, to, tag), self._witness)

    def Issend(self, buffer: BufSpec, to: int, tag: int, /) -> Request:
        return WitnessedRequest(self.plain.Issend(buffer, to, tag), self._witness)

    def Irecv(self, buffer: BufSpec, source: int, tag: int, /) -> Receive:
        return WitnessedRequest(self.plain.Irecv(buffer, source, tag), self._witness)

    def Iprobe(self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, /) -> bool:
        if tag == MPI.ANY_TAG:  # only to enter MPI
            return self.plain.Iprobe()
        return self._witness.happened(lambda: self.plain.Iprobe(source, tag))

    def Improbe(self, source: int, tag: int, status: MPI.Status, /) -> Matched | None:
        found = self._witness.message(
            lambda source: self.plain.Improbe(source, tag, status), source, tag, lambda: status.source
        )
        return None if found is None else WitnessedMessage(found, self._witness)

    def Ibarrier(self) -> Request:
        return WitnessedRequest(self.plain.Ibarrier(), self._witness)
