"""A communicator that can be left for one of fewer ranks, where MPI can find that a rank has died (ULFM): Open MPI 5
under `mpirun --with-ft ulfm`.

A probe, a receive or a collective that finds a rank dead raises RankLost. A send does not: a rank that computes and
sends learns of a loss at its next probe, receive or collective.
"""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import ParamSpec, TypeVar

from mpitrain.errors import RankLost
from mpitrain.mpi.communicator import Communicator, Matched, Receive, Request
from mpitrain.mpi.launcher import MPI, BufSpec, require_one_job
from mpitrain.mpi.process import PROCESS

P = ParamSpec("P")
T = TypeVar("T")
FAULTS = (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED)
NEEDED = "Open MPI 5, started by mpirun --with-ft ulfm"


def tolerant() -> bool:
    """Whether this MPI was started so that it outlasts its ranks."""
    name, version = MPI.get_vendor()
    enabled = os.environ.get("OMPI_MCA_mpi_ft_enable")  # noqa: SIM112 (as its launcher spells it)
    return name == "Open MPI" and version >= (5,) and enabled in ("1", "true")


def world() -> "EnduringCommunicator | None":
    """All ranks that were started, where they can go on without some of them. Raises BadInput as `require_one_job`."""
    if not tolerant():
        return None
    PROCESS.start()
    require_one_job()
    return EnduringCommunicator(MPI.COMM_WORLD, Family())


class Family:
    """A communicator and those made from it. `broken`: a send in one of them has found a rank dead."""

    def __init__(self, deadline: float = 0.0) -> None:
        """`deadline`: seconds of a blocking call after which stopped ranks of this node are ended. 0: the caller's own
        context ends the job instead."""
        self.members: list[MPI.Comm] = []
        self.broken, self._deadline = False, deadline

    def blocking(self, call: str) -> AbstractContextManager[object]:
        """Context around a call that blocks, in place of the caller's own."""
        return PROCESS.without_stopped(call, self._deadline) if self._deadline else nullcontext()


class _Noticing(AbstractContextManager[None]):
    """Context that turns what MPI raises because a rank has died into RankLost.

    A collective that is found broken in a later one of its rounds ends with MPI_ERR_OTHER; then its communicator `comm`
    tells whether ranks are lost.
    """

    def __init__(self, comm: MPI.Comm | None = None) -> None:
        self._comm = comm

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if isinstance(error, MPI.Exception) and self._tells_of_loss(error.Get_error_class()):
            raise RankLost() from error

    def _tells_of_loss(self, error: int) -> bool:
        if error != MPI.ERR_OTHER or self._comm is None:
            return error in FAULTS
        return self._comm.Is_revoked() or self._comm.Get_failed().size > 0


NOTICING = _Noticing()


class EnduringRequest:
    """A receive or a collective, whose test raises RankLost."""

    def __init__(self, plain: Receive, noticing: _Noticing = NOTICING) -> None:
        self._plain, self._noticing = plain, noticing

    def Test(self, status: MPI.Status | None = None, /) -> bool:  # named as in MPI's requests
        with self._noticing:
            return self._plain.Test(status)


class EnduringSend:
    """A send; one to a dead rank counts as completed."""

    def __init__(self, family: Family, begin: Callable[[], Request]) -> None:
        self._family = family
        self._plain = self._unless_dead(begin, None)

    def Test(self) -> bool:
        return self._plain is None or self._unless_dead(self._plain.Test, True)

    def _unless_dead(self, call: Callable[[], T], otherwise: T) -> T:
        try:
            with NOTICING:
                return call()
        except RankLost:
            self._family.broken = True
            return otherwise


class EnduringMessage:
    """A message that a probe has matched; its sender may die before all of it has come."""

    def __init__(self, plain: Matched) -> None:
        self._plain = plain

    def Recv(self, buffer: BufSpec, /) -> None:
        with NOTICING:
            self._plain.Recv(buffer)

    def Irecv(self, buffer: BufSpec, /) -> Receive:
        with NOTICING:
            return EnduringRequest(self._plain.Irecv(buffer))


class EnduringCommunicator:
    """A communicator of MPI's whose calls raise RankLost once a rank has died."""

    def __init__(self, plain: MPI.Comm, family: Family, like: "EnduringCommunicator | None" = None) -> None:
        """`like`: a communicator of the same ranks, if this one is still being made and cannot be asked."""
        self.plain, self._family, self._noticing = plain, family, _Noticing(plain)
        self.rank: int = (like or plain).rank
        self.size: int = (like or plain).size
        self.processes: list[str] = []  #: what each rank has told of its process
        family.members.append(plain)
        begun = self._begun
        self.Irecv, self.Ibarrier, self.Ibcast = begun(plain.Irecv), begun(plain.Ibarrier), begun(plain.Ibcast)
        self.Ireduce, self.Iallreduce = begun(plain.Ireduce), begun(plain.Iallreduce)
        self.Ireduce_scatter = begun(plain.Ireduce_scatter)
        self.Iallgather, self.Iallgatherv = begun(plain.Iallgather), begun(plain.Iallgatherv)

    def without_lost(self, deadline: float) -> "tuple[EnduringCommunicator, list[int]]":
        """The communicator of all living ranks, and the lost ranks of this one. All living ranks call it; those still
        waiting in a communicator of this family then get RankLost. Ranks of this node that are stopped after the
        deadline are ended."""
        for communicator in self._family.members:
            communicator.Revoke()
        with PROCESS.without_stopped("MPI_Comm_shrink", deadline):
            PROCESS.together = whole = self.plain.Shrink()
        before = self.plain.Get_group()
        gone = MPI.Group.Difference(before, whole.Get_group())
        return EnduringCommunicator(whole, Family(deadline)), MPI.Group.Translate_ranks(gone, None, before)

    # ---- messages

    def Isend(self, buffer: BufSpec, to: int, tag: int, /) -> Request:
        return EnduringSend(self._family, lambda: self.plain.Isend(buffer, to, tag))

    def Issend(self, buffer: BufSpec, to: int, tag: int, /) -> Request:
        return EnduringSend(self._family, lambda: self.plain.Issend(buffer, to, tag))

    def Iprobe(self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, /) -> bool:
        self._require_whole()
        with self._noticing:
            return self.plain.Iprobe(source, tag)

    def Improbe(self, source: int, tag: int, status: MPI.Status, /) -> Matched | None:
        self._require_whole()
        with self._noticing:
            found = self.plain.Improbe(source, tag, status)
        return None if found is None else EnduringMessage(found)

    def _require_whole(self) -> None:
        if self._family.broken:
            raise RankLost()

    def Split(self, color: int, /) -> Communicator:
        with self._noticing, self._family.blocking("MPI_Comm_split"):
            return EnduringCommunicator(self.plain.Split(color), self._family)

    def Split_type(self, kind: int, /) -> Communicator:
        with self._noticing, self._family.blocking("MPI_Comm_split_type"):
            return EnduringCommunicator(self.plain.Split_type(kind), self._family)

    def Idup(self) -> tuple[Communicator, Request]:
        with self._noticing:
            made, request = self.plain.Idup()
        return EnduringCommunicator(made, self._family, self), EnduringRequest(request, self._noticing)

    def _begun(self, begin: Callable[P, Receive]) -> Callable[P, Receive]:
        """The same call, whose request raises RankLost."""

        def begun(*arguments: P.args, **named: P.kwargs) -> Receive:
            self._require_whole()
            with self._noticing:
                return EnduringRequest(begin(*arguments, **named), self._noticing)

        return begun
