"""The calls of MPI that this program uses, as interfaces: mpi4py has them all, and so has mpitrain.simulation.

Names, arguments and meanings are mpi4py's. Nothing else of a communicator, request or window may be used, so that every
implementation can be whole. Arguments are passed by position.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from math import inf
from typing import Protocol, TypeVar

from mpitrain.flat import Array
from mpitrain.mpi.launcher import MPI, BufSpec, BufSpecB, BufSpecV, InPlace, TargetSpec
from mpitrain.mpi.witness import Witness

T = TypeVar("T")


class Request(Protocol):
    """An operation in progress."""

    def Test(self) -> bool:
        """Whether it has completed. Every call lets all operations of this rank advance."""


class Receive(Protocol):
    """A receive in progress: a `Request` that also tells what has come."""

    def Test(self, status: MPI.Status | None = None, /) -> bool: ...


class Matched(Protocol):
    """A message that a probe has found, and that only the finder can receive."""

    def Recv(self, buffer: BufSpec, /) -> None: ...

    def Irecv(self, buffer: BufSpec, /) -> Receive: ...


class Communicator(Protocol):
    """A group of ranks. Messages of two ranks with one tag stay in order; all start collectives in one order."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def Isend(self, buffer: BufSpec, to: int, tag: int, /) -> Request: ...

    def Issend(self, buffer: BufSpec, to: int, tag: int, /) -> Request: ...

    def Irecv(self, buffer: BufSpec, source: int, tag: int, /) -> Receive: ...

    def Iprobe(self, source: int = ..., tag: int = ..., /) -> bool: ...

    def Improbe(self, source: int, tag: int, status: MPI.Status, /) -> Matched | None: ...

    def Ibarrier(self) -> Request: ...

    def Ibcast(self, buffer: BufSpec, root: int, /) -> Request: ...

    def Ireduce(self, send: BufSpec | InPlace, receive: BufSpec | None, operation: MPI.Op, root: int, /) -> Request: ...

    def Iallreduce(self, send: BufSpec | InPlace, receive: BufSpec, operation: MPI.Op = ..., /) -> Request: ...

    def Ireduce_scatter(self, send: BufSpec, receive: BufSpec, counts: Sequence[int], /) -> Request: ...

    def Iallgather(self, send: BufSpec, receive: BufSpecB, /) -> Request: ...

    def Iallgatherv(self, send: BufSpec | InPlace, receive: BufSpecV, /) -> Request: ...

    def Split(self, color: int, /) -> "Communicator": ...

    def Split_type(self, kind: int, /) -> "Communicator": ...

    def Idup(self) -> "tuple[Communicator, Request]": ...


class Window(Protocol):
    """Memory of every rank of a communicator that the others reach without its help, in one passive epoch."""

    def Lock_all(self, assertion: int, /) -> None: ...

    def Unlock_all(self) -> None: ...

    def Sync(self) -> None: ...

    def Free(self) -> None: ...

    def tomemory(self) -> Array: ...

    def Shared_query(self, rank: int, /) -> tuple[Array, int]: ...

    def Rget(self, origin: BufSpec, rank: int, target: TargetSpec, /) -> Request: ...

    def Raccumulate(self, origin: BufSpec, rank: int, target: TargetSpec, operation: MPI.Op, /) -> Request: ...

    def Compare_and_swap(self, origin: Array, compare: Array, result: Array, rank: int, at: int, /) -> None: ...

    def Flush(self, rank: int, /) -> None: ...

    def Flush_all(self) -> None: ...


class Pace:
    """Lets the time pass that a simulated rank takes for its own work. In a process, work takes its own time.

    `scale`: how many times as long a sample takes as it would by what is known; `said`: a line that says why."""

    scale, said = 1.0, ""

    def gradient(self, samples: int) -> None:
        """Pass the time of a gradient on this many samples."""

    def evaluation(self, samples: int) -> None:
        """Pass the time of the evaluation of this many samples."""

    def work(self, what: str, amount: float) -> None:
        """Pass the time of work on this many bytes: an "update" of parameters, a "copy" or a "check" of a vector, a
        "delta", which chooses entries from a residual, or "entries", which are coded or decoded, and applied to
        weights. An "evaluation" is given in samples."""

    def link_busy(self) -> float:
        """Seconds for which the busiest card of a node has sent, or taken, so far; 0 where nobody counts them."""
        return 0.0

    def around(self, what: str, nbytes: int) -> AbstractContextManager[object]:
        """Context in which an "update", a "check", a "delta" or "entries" of this many bytes are computed."""
        return nullcontext()


class Runtime(Protocol):
    """What a rank runs in, a process (mpi.process) or a simulation: its time, its waits, its windows, its end."""

    pace: Pace  #: the time that this rank's work takes
    simulated: int = 0  #: how many simulated ranks share this process; 0 if none does
    steadfast: bool = False  #: whether no rank can fall silent, so that none gives heartbeats
    probes: int = 1  #: how many probes in a row it takes to find a message that has come
    threads: int = 0  #: how many threads compute for a rank; 0: as the configuration and the machine say
    deadline_key: str = "run.deadline"  #: what a user sets the deadline by
    #: Seconds for a rank at work that has heard of a fault to end its work, before the job ends.
    grace: float = 1.0
    witness: Witness | None = None  #: gives the recorded events if a training is replayed

    def once(self, what: str, make: Callable[[], T]) -> T:
        """What `make` returns. Ranks that share a process get the same object, made by the first: do not change it."""
        return make()

    def clock(self) -> float:
        """Seconds since some moment."""

    def sleep(self, seconds: float, /) -> None:
        """Do nothing for so long, as if at work."""

    def pause(self, nap: float, patience: float, describe: Callable[[], str]) -> None:
        """Let other ranks have the core between two polls of a wait.

        A process naps for `nap` seconds, or with 0 merely yields its core. A simulated rank stands still until an event
        concerns it, or for `patience` seconds; where none can come it ends the job, with what ranks `describe`.
        """

    def join(self, jobs: Sequence[Future[T]], seconds: float, alone: bool) -> bool:
        """Wait `seconds` for jobs of this rank's own threads; whether they have ended. Unless `alone`, they wait for
        other ranks themselves."""

    def blocking(self, call: str, deadline: float) -> AbstractContextManager[object]:
        """Context around a call that blocks: the job ends when it takes longer than this many seconds."""

    def working(self, beat: Callable[[], None], step: float) -> AbstractContextManager[object]:
        """Context of work in which this rank calls no MPI, while a process calls `beat` every `step` seconds."""
        return nullcontext()

    def allocate(self, size: int, communicator: Communicator, shared: bool) -> Window:
        """A window of `size` bytes on this rank, which all ranks address if it is `shared`. Collective, blocks."""

    def shared_memory_left(self) -> float:
        """Bytes that this node has left for shared windows."""
        return inf

    def finalize_within(self, seconds: float) -> None:
        """Set how long the end of this program waits for that of the other ranks, at most."""

    def abort(self, status: int) -> None:
        """End every rank."""
