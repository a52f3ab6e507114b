"""A simulated job: as many ranks as wanted, each with a transport of its own, in one process."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from math import inf
from types import MappingProxyType
from typing import Any, Generic, TypeVar, cast

from mpitrain.errors import say
from mpitrain.mpi import Transport
from mpitrain.mpi import communicator as interface
from mpitrain.mpi.process import PROCESS
from mpitrain.mpi.watchdog import outlasted
from mpitrain.simulation.communicator import Group, SimulatedCommunicator
from mpitrain.simulation.messages import ClusterNetwork, Wires
from mpitrain.simulation.scheduler import Cores, Late, Scheduler
from mpitrain.simulation.windows import SimulatedWindow

T = TypeVar("T")
J = TypeVar("J")
SHORT = 1e-3  # seconds of real time between two polls of threads that wait for other ranks


class Aborted(RuntimeError):
    """A rank has ended the job, with this exit status."""

    def __init__(self, rank: int, status: int) -> None:
        super().__init__(f"rank {rank} has ended the job with status {status}")
        self.status = status


class Job(Generic[T]):
    """`ranks` ranks that run a program. `nodes`: the node of each, by default one for all. `seconds(rank, samples)`:
    the time for a gradient on a core of its own, by default 0; `work(rank, kind, amount)`: that for other work, with
    kind and amount as in `Pace.work`; `cores`: how many cores the ranks of a node share, by default one for each rank;
    `stops`: by rank, from when until when it stands still."""

    def __init__(
        self,
        ranks: int,
        network: ClusterNetwork | None = None,
        nodes: Sequence[int] | None = None,
        seconds: Callable[[int, float], float] = lambda rank, samples: 0.0,
        cores: int | None = None,
        deadline: float = 300.0,
        stops: Mapping[int, Sequence[tuple[float, float]]] = MappingProxyType({}),
        work: Callable[[int, str, float], float] = lambda rank, kind, amount: 0.0,
    ) -> None:
        PROCESS.start()  # for MPI's statuses and errors
        nodes = [0] * ranks if nodes is None else nodes
        self.scheduler, self.seconds, self.work = Scheduler[T](ranks, stops), seconds, work
        shared = {node: Cores(self.scheduler, ranks if cores is None else cores) for node in nodes}
        self.cores = [shared[node] for node in nodes]
        self.wires = Wires(self.scheduler, network or ClusterNetwork(), nodes)
        self._world, self.size, self._deadline = Group(self.wires, range(ranks)), ranks, deadline
        self.shared: dict[str, object] = {}  # what the ranks make once
        self.steadfast = not stops  # without stops, an endless wait is found as a deadlock

    def run(self, program: Callable[[Transport], T]) -> list[T]:
        """What the program returns on each rank. Raises what it raises on any; Deadlock if all wait for each other."""

        def on(rank: int) -> Callable[[], T]:
            runtime = self.runtime(rank)
            return lambda: program(Transport(SimulatedCommunicator(self._world, rank), self._deadline, runtime))

        return self.scheduler.run([on(rank) for rank in range(self.size)])

    def runtime(self, rank: int) -> "SimulatedRank":
        """The runtime of a rank."""
        return SimulatedRank(self, rank)


class SimulatedPace(interface.Pace):
    """The time of one rank's own work, on the cores of its node."""

    def __init__(self, job: Job[Any], rank: int) -> None:
        self._job, self._cores, self._rank = job, job.cores[rank], rank

    def link_busy(self) -> float:
        return max(self._job.wires.busy.values())

    def gradient(self, samples: int) -> None:
        self._cores.compute(self._rank, self._job.seconds(self._rank, self.scale * samples))

    def evaluation(self, samples: int) -> None:
        self.work("evaluation", self.scale * samples)

    def work(self, what: str, amount: float) -> None:
        if seconds := self._job.work(self._rank, what, amount):
            self._cores.compute(self._rank, seconds)

    @contextmanager
    def around(self, what: str, nbytes: int) -> Iterator[None]:
        if what == "check":
            self.work(what, nbytes)
        yield
        if what != "check":
            self.work(what, nbytes)


class SimulatedRank(interface.Runtime):
    """The `Runtime` of one simulated rank: its time is the job's, and its waits let the other ranks run. Work in which
    it calls no MPI takes no simulated time."""

    threads = 1

    def __init__(self, job: Job[Any], rank: int) -> None:
        self._scheduler, self._rank, self.simulated = job.scheduler, rank, job.size
        self.pace, self._shared, self.steadfast = SimulatedPace(job, rank), job.shared, job.steadfast

    def once(self, what: str, make: Callable[[], J]) -> J:
        if what not in self._shared:
            self._shared[what] = make()
        return cast(J, self._shared[what])

    def clock(self) -> float:
        return self._scheduler.now

    def sleep(self, seconds: float) -> None:
        self._scheduler.sleep(self._rank, seconds)

    def pause(self, nap: float, patience: float, describe: Callable[[], str]) -> None:
        self._scheduler.park(self._rank, patience, describe)

    def join(self, jobs: Sequence[Future[J]], seconds: float, alone: bool) -> bool:
        """Threads are no ranks: while they work no time passes, unless they wait for other ranks."""
        if wait(jobs, None if alone else SHORT).not_done:
            self.sleep(seconds)
            self._scheduler.wake(self._rank)
        return not wait(jobs, 0).not_done

    @contextmanager
    def blocking(self, call: str, deadline: float) -> Iterator[None]:
        """Ends the job when the call outlasts the deadline, as the watchdog of a process does."""
        self._scheduler.limit(self._rank, self.clock() + deadline)
        try:
            yield
        except Late:
            say(outlasted(self._rank, call, deadline, self.deadline_key))
            self.abort(1)
        finally:
            self._scheduler.limit(self._rank, inf)

    def allocate(self, size: int, communicator: interface.Communicator, shared: bool) -> SimulatedWindow:
        assert isinstance(communicator, SimulatedCommunicator)
        return SimulatedWindow(size, communicator)

    def finalize_within(self, seconds: float) -> None:
        """Do nothing: the end of a simulated job waits for nothing."""

    def abort(self, status: int) -> None:
        raise Aborted(self._rank, status)
