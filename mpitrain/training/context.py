"""Everything a protocol needs to train, handed to it whole; and which ranks act as one worker (`run.team`)."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from mpitrain.algorithms import Algorithm, maker_of
from mpitrain.checkpoint import coordination
from mpitrain.checkpoint.state import Numbers, State
from mpitrain.checkpoint.writer import Saver
from mpitrain.config import Config
from mpitrain.device.cpu import CPU, Cpu
from mpitrain.errors import BadInput, some
from mpitrain.flat import Array
from mpitrain.models.model import Model
from mpitrain.monitoring.counters import Counters, RankFigures
from mpitrain.monitoring.journal import Journal
from mpitrain.monitoring.monitor import Monitor
from mpitrain.mpi import Transport
from mpitrain.mpi.enduring import EnduringCommunicator
from mpitrain.mpi.team import Team
from mpitrain.mpi.witness import Witness
from mpitrain.sampling.queue import Queue, Work
from mpitrain.sampling.stages import Schedule
from mpitrain.signals import Stop
from mpitrain.training.gradients import Learner
from mpitrain.training.run_code import GIVEN

WAYS = {  # what a probe of several nodes has chosen, and why
    "messages": "by messages: MPI serves one-sided reads across these nodes only while their target calls MPI",
    "one-sided": "by one-sided reads, which MPI serves across these nodes while their target computes",
}
#: The ways of exchange in which MPI, if it can, takes vectors from GPU memory.
DIRECT = ("allreduce", "collectives", "messages")


def fresh(options: Algorithm, theta: Array, queue: Queue) -> State:
    """The state at the start of a training, with the vectors that the algorithm keeps beside θ."""
    beside, own, rate = options.beside(theta), dict(options.own(theta)), options.common_rate()
    return State(theta, queue, beside=beside, model_of=options.model, local=own, rate=rate)


@dataclass
class Session:
    """One rank's part of a run.

    `members` are the ranks that take part in the algorithm's exchange, the master first if there is one. Of a `team`
    only the leader is a member; the others work for it.
    """

    config: Config
    transport: Transport
    members: list[int]
    network: Model
    learner: Learner
    schedule: Schedule
    state: State
    clock: Callable[[], float]
    stop: Stop = field(default_factory=Stop)
    saver: Saver | None = None  # where checkpoints go; None: none are written
    token: str = ""  # by which `in-use.json` in the run folder names this run
    device: Cpu = CPU
    resumed: Path | None = None  # the checkpoint that this run goes on from
    journal: Journal = field(default_factory=Journal)
    monitor: Monitor = field(default_factory=Monitor)
    exchange: str = "none"  # how vectors travel
    way: str = ""  # `run.exchange`, or what was chosen for "auto"; "" before that
    team: Team | None = None
    figures: RankFigures = field(default_factory=RankFigures)
    documents: Mapping[str, str] = field(default_factory=dict)  # of network and data: texts by file name
    witness: Witness = field(default_factory=Witness)  # records or replays nondeterministic events
    #: On a rank whose state is that of the whole training: gives the samples that were handed out and are not in the
    #: state yet.
    outstanding: Callable[[], list[Work]] | None = None
    #: If replicas may differ: brings one of them up to date after the loss of ranks, on a transport of those that are
    #: left; returns whether this rank has it. Each rank keeps its own vectors, such as residuals.
    even_out: Callable[[Transport, list[int]], bool] | None = None
    began: float = 0.0  # when the training began, by the transport's clock
    bytes_of_all: int | None = None  # that all ranks have exchanged outside teams, once they have been counted

    def __post_init__(self) -> None:
        self.counters = Counters(self.state, self.figures)

    @property
    def workers(self) -> int:
        """The number of workers: teams, and other ranks that compute gradients."""
        return workers_of(self.config, self.transport)

    @property
    def has_master(self) -> bool:
        """Whether the first rank is a master that computes no gradients: one that is alone is its own worker."""
        return self.config.algorithm.has_master and self.transport.size > 1

    @property
    def starts_apart(self) -> bool:
        """Whether workers start from seeds of their own, as at the start of a training; where one goes on, those
        without a state of their own start at the centre."""
        return self.config.algorithm.starts_apart and not self.state.trained

    @property
    def goes_on(self) -> bool:
        """Whether the other ranks go on if one is lost."""
        return self.config.run.lost_ranks == "continue" and isinstance(self.transport.comm, EnduringCommunicator)

    @property
    def follows(self) -> bool:
        """Whether this rank works for a team's leader."""
        return self.team is not None and not self.team.leads

    def command_to_resume(self, run: Path) -> str:
        """The command that continues the run in this folder on as many ranks."""
        ranks, folder, how = self.transport.size, shlex.quote(str(run)), ""
        if self.goes_on:
            ranks, how = ranks + self.config.run.spares, "--with-ft ulfm "
        if self.transport.runtime.simulated:
            return f"mpitrain simulate --cluster … --resume {folder}"
        if self.config.model.import_ == GIVEN:
            return f"mpitrain.train(model=..., resume={str(run)!r})"
        return f"{f'mpirun {how}-n {ranks} ' if ranks > 1 else ''}python -m mpitrain --resume {folder}"

    def takes_part(self, rank: int) -> bool:
        """Whether a rank trains, as a member or for its team's leader."""
        return self.team is not None or rank in self.members

    @property
    def own_bytes(self) -> int:
        """Bytes that this rank has sent and received since the start, outside its team."""
        return self.transport.traffic.both - (self.team.traffic.both if self.team is not None else 0)

    def bytes_exchanged(self) -> int | None:
        """Bytes exchanged by all ranks since the start, outside teams: until they have been counted, what workers have
        reported, or without a master this rank's bytes times the number of members; None with one rank."""
        if self.transport.size == 1:
            return None
        if self.bytes_of_all is not None:
            return self.bytes_of_all
        if self.has_master:
            return int(sum(self.counters.traffic.values()))
        return int(len(self.members) * self.own_bytes)

    def save_together(self) -> None:
        """Start a checkpoint of all ranks, each with its own piece, if checkpoints are written. Collective."""
        if self.saver is not None:
            coordination.together(self.saver, self.state, self.transport)

    def restore(self, take: Callable[[Numbers], None] = lambda numbers: None) -> bool:
        """`coordination.restore` from the checkpoint that the run resumes from; False if it does not resume."""
        if self.resumed is None:
            return False
        maker, layout = maker_of(self.config.algorithm), self.network.layout
        return coordination.restore(self.resumed, self.state, self.transport, layout, maker, take)

    def say_exchange(self, how: str) -> None:
        """Record how vectors travel; say it if that was chosen by a probe, or if they start from a GPU."""
        direct = self.device.direct and how in DIRECT
        self.exchange = f"{how} from GPU memory" if direct else how
        if direct:
            self.journal.progress.line(f"vectors go to MPI from GPU memory: {self.device.passing}")
            return
        if self.device.passing and how not in ("none", "sparse messages"):
            why = f"the exchange is {how!r}" if self.device.direct else self.device.passing
            self.journal.progress.line(f"vectors are staged in host memory: {why}")
        if how in WAYS and self.config.run.exchange == "auto" and self.transport.nodes > 1:
            self.journal.progress.line(f"vectors travel {WAYS[how]} (run.exchange)")


def divide(size: int | Literal["node"], node_leaders: Sequence[int], server: bool = False) -> list[list[int]]:
    """The ranks of each team, its leader first: `size` neighbours, or those of each node; a server is a team by itself.

    `node_leaders` are, for each rank, the first rank of its node. Raises BadInput naming `run.team` for a number that
    does not divide the number of ranks.
    """
    first, ranks = int(server), len(node_leaders)
    alone, count = [[rank] for rank in range(first)], ranks - first
    if size == "node":
        leaders = sorted(set(node_leaders[first:]))
        return alone + [[rank for rank in range(first, ranks) if node_leaders[rank] == leader] for leader in leaders]
    if count % size:
        beside = " beside the server" if server else ""
        raise BadInput(f"run.team = {size}: {some(count, 'rank')}{beside} cannot be divided into teams of {size}")
    return alone + [list(range(begin, begin + size)) for begin in range(first, ranks, size)]


def teams_of(config: Config, transport: Transport) -> list[list[int]]:
    """The ranks of each team of these ranks, its leader first. Raises BadInput naming `run.team`."""
    return divide(config.run.team, transport.node_leaders, config.algorithm.has_master and transport.size > 1)


def workers_of(config: Config, transport: Transport) -> int:
    """The number of workers: each team is one, and each other rank that computes gradients.

    Raises BadInput naming `run.team` if the ranks cannot be divided.
    """
    return config.algorithm.workers(len(teams_of(config, transport)))
