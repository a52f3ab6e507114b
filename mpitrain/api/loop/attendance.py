"""MPI while the user's code runs: the rank still gives heartbeats, and its operations advance."""

from collections.abc import Callable
from contextlib import AbstractContextManager

from mpitrain.errors import BadInput
from mpitrain.mpi import MPI, Transport
from mpitrain.mpi.heartbeats import BEATS
from mpitrain.mpi.messages import ENTER_MPI


class Attendance:
    """A thread that calls MPI in place of the user's code; within this context the rank calls MPI itself.

    While `busy`, `progress` is called every few milliseconds: a sum is in progress, or others use this rank's window.
    Raises BadInput where MPI does not allow calls from two threads.
    """

    def __init__(self, transport: Transport) -> None:
        if transport.size > 1 and MPI.Query_thread() < MPI.THREAD_SERIALIZED:
            raise BadInput("MPI: was started without MPI_THREAD_SERIALIZED, which the thread of the heartbeats needs")
        self._transport, self._depth = transport, 0
        self.busy = False
        self.progress: Callable[[], object] = lambda: None
        self._user: AbstractContextManager[object] | None = None

    def __enter__(self) -> None:
        self._depth += 1
        user, self._user = self._user, None
        if user is not None:
            user.__exit__(None, None, None)

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0 and self._transport.size > 1:
            step = ENTER_MPI if self.busy else self._transport.deadline / BEATS / 2
            self._user = self._transport.runtime.working(self._beat, step)
            self._user.__enter__()

    def _beat(self) -> None:
        if self.busy:
            self._transport.comm.Iprobe()
            self.progress()
        self._transport.heartbeat()
