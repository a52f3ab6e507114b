"""What is seen of a training that loses ranks, what strikes them, and what a sample adds to the parameters."""

import contextlib
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from mpitrain.api import going_on, train
from mpitrain.checkpoint import draft, lease, writer
from mpitrain.flat import Array
from mpitrain.models.network import Network
from mpitrain.protocols.server.adding_master import AddingMaster
from mpitrain.protocols.server.by_messages import AskingCentre, ServingCentre
from mpitrain.sampling.queue import Queue, Work
from mpitrain.training.context import Session
from mpitrain.training.gradients import Learner

from . import SAMPLES
from .losses import Case
from .mortals import Mortals

PROCESSES = 1 << 30  # a number that is no process's


@dataclass
class Start:
    """The ranks of one start, first or after a loss: what they begin with and what they load."""

    ranks: int
    queues: dict[int, Queue] = field(default_factory=dict)  # by rank: what is to be trained on
    parameters: dict[int, Array] = field(default_factory=dict)
    loaded: Counter[int] = field(default_factory=Counter)
    moves: dict[int, list[Array]] = field(default_factory=dict)  # that each worker has sent, the last perhaps in part
    unconfirmed: dict[int, Callable[[], int]] = field(default_factory=dict)
    centre: Array | None = None

    @property
    def queue(self) -> Queue:
        return next(iter(self.queues.values()))

    @property
    def trained(self) -> Counter[int]:
        """The positions that its parameters are trained on."""
        return Counter(range(self.queue.position)) - positions(*self.queue.returned)

    @property
    def due(self) -> Counter[int]:
        """Those that it is to train on."""
        return positions(*self.queue.returned) + Counter(range(self.queue.position, self.queue.total))


def positions(*works: Work) -> Counter[int]:
    """Those of these ranges."""
    return Counter(p for work in works for p in range(_first(work), _first(work) + work.count))


def _first(work: Work) -> int:
    return work.epoch * SAMPLES + work.start


class Watch:
    """What is seen of a training, and what strikes its ranks."""

    def __init__(self, what: Case, job: Mortals) -> None:
        self.what, self.job, self.here = what, job, threading.local()
        self.starts: dict[int, Start] = {}  # by the group of ranks
        self.loads = 0
        self.begun: set[int] = set()
        self.first_theta: Array | None = None
        self.wrong: list[str] = []
        self._lost = False
        for loss in what.losses:
            if loss.where == "start":
                job.arm(loss.rank, loss.calls, loss.seconds)

    def rank(self) -> int:
        """The running one."""
        return int(threading.current_thread().name.removeprefix("rank "))

    def moment(self, where: str, number: int = 0, rank: int | None = None) -> None:
        """A moment has come."""
        for loss in self.what.losses:
            same = loss.where == where or (loss.where == "time" and where == "call")
            if not same or (number and number != loss.number) or rank not in (None, loss.rank):
                continue
            if loss.late:
                at = self.job.scheduler.now + loss.late
                self.job.scheduler.at(at, lambda loss=loss: self.job.strike(loss.rank, loss.seconds))
            elif loss.rank not in self.job.armed:
                self.job.arm(loss.rank, loss.calls, loss.seconds)

    # ---- what the program does

    def begins(self, plain: Callable[[Session], None], session: Session) -> None:
        """All ranks of a start have its state."""
        plain(session)
        group: Any = session.transport.comm.plain.group  # type: ignore[attr-defined]
        start = self.starts.setdefault(id(group), Start(session.transport.size))
        state, rank = session.state, self.rank()
        self.begun.add(rank)
        start.parameters[rank] = state.theta.copy()
        start.queues[rank] = Queue(SAMPLES, state.queue.total, state.queue.position, list(state.queue.returned))
        if self.first_theta is None:
            self.first_theta = state.theta.copy()
        self.here.start, self.here.session, self.here.counts = start, session, True

    def loaded(self, plain: Any, learner: Learner, work: Work) -> Any:
        self.here.work = work
        if self.here.counts:
            self.here.start.loaded.update(positions(work))
        self.loads += 1
        self.moment("call", self.loads)
        return plain(learner, work)

    def scaled(
        self, plain: Any, learner: Learner, theta: Array, out: Array, work: Work, scale: float, *rest: Any
    ) -> Any:
        """A rank that has no sample of a minibatch takes one that does not count."""
        self.here.counts = scale != 0
        return plain(learner, theta, out, work, scale, *rest)

    def gradient(self, network: Network, out: Array, ready: Any, share: Any) -> float:
        """A number at the place of each sample of the minibatch, in pieces as of layers."""
        work, out[:] = self.here.work, 0.0
        for position in positions(work):
            out[position % out.size] += self._weight(work, share)
        for part in reversed(network.slices):
            if ready is not None:
                ready(part)
        return 1.0

    def _weight(self, work: Work, share: Any) -> float:
        """What makes a sample add one learning rate, whatever is divided."""
        session, name = self.here.session, self.what.way.split()[0]
        if name == "allreduce" and share is not None:
            return float(share[1] / work.count)
        if name in ("block-momentum", "easgd-sync", "eamsgd-sync"):
            return float(session.workers)
        if name == "sparse-delta":
            mean = session.transport.size if session.config.algorithm.combine == "mean" else 1
            return float(mean * session.config.training.minibatch / work.count)
        return 1.0

    def pushed(self, plain: Any, centre: AskingCentre, piece: slice, d: Array, told: Any = None) -> None:
        moves = self.here.start.moves.setdefault(self.rank(), [])
        if piece.start == 0:
            moves.append(np.zeros(centre._copy.size))
        moves[-1][piece] = d
        link, whole = centre._link, piece.stop == centre._copy.size
        self.here.start.unconfirmed[self.rank()] = lambda: link.unconfirmed + (not whole)
        plain(centre, piece, d, told)
        self.here.start.unconfirmed[self.rank()] = lambda: link.unconfirmed

    def refreshed(self, plain: Any, master: AddingMaster) -> None:
        plain(master)
        if not isinstance(master.centre, ServingCentre):
            return
        start, theta = self.here.start, master.state.theta
        if start.centre is None:
            start.centre = start.parameters[self.rank()]
        moved = theta - start.centre
        known = {rank: len(moves) - start.unconfirmed[rank]() for rank, moves in start.moves.items()}
        if not any(
            np.allclose(moved, sum((m for each in some for m in each), np.zeros(theta.size)), rtol=0, atol=1e-9)
            for some in itertools.product(
                *([moves[:k] for k in range(known[rank], len(moves) + 1)] for rank, moves in start.moves.items())
            )
        ):
            self.wrong.append("the centre is not its start and whole moves")

    def killed(self, process: int, signal: int) -> None:
        self.job.kill(process - PROCESSES)


@contextlib.contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """Have the program tell."""
    job, local = watch.job, threading.local()

    def holder() -> lease.Holder:
        return lease.Holder("here", PROCESSES + watch.rank(), "", "", "", "", f"{watch.rank()}")

    def lives(held: lease.Holder) -> bool:
        return held.process - PROCESSES not in job.dead

    class Writer(writer.ThreadPoolExecutor):  # type: ignore[name-defined, misc]
        """Whose thread ends with its rank."""

        def __init__(self, *arguments: Any) -> None:
            super().__init__(
                *arguments, initializer=lambda rank: setattr(local, "rank", rank), initargs=(watch.rank(),)
            )

    def living() -> None:
        if getattr(local, "rank", None) in job.dead:
            raise SystemExit  # which no handler takes for a fault of the disk

    def sleep(seconds: float) -> None:
        living()
        time.sleep(seconds / 20)

    def committed(plain: Any, of: draft.Draft, *rest: Any, **more: Any) -> Any:
        living()
        return plain(of, *rest, **more)

    def wrapping(of: Any, name: str, by: Any) -> Any:
        plain = getattr(of, name)
        return mock.patch.object(of, name, lambda *arguments, **more: by(plain, *arguments, **more))

    def gradient(plain: Any, network: Any, theta: Array, out: Array, batch: Any, *rest: Any, share: Any = None) -> Any:
        if not hasattr(watch.here, "work"):  # before the training, to compile it
            return plain(network, theta, out, batch)
        return watch.gradient(network, out, rest[1] if rest else None, share)

    def leaving(plain: Any, *arguments: Any) -> Any:
        watch.moment("recovery")
        return plain(*arguments)

    def ending(plain: Any, *arguments: Any) -> Any:
        watch.moment("end", rank=watch.rank())
        return plain(*arguments)

    patches = (
        mock.patch.object(lease.Holder, "here", holder),
        mock.patch.object(lease.Holder, "lives", property(lives)),
        mock.patch.object(lease, "HEARTBEAT", 1e4),
        mock.patch.object(lease.Lease, "_beat", lambda held: None),
        mock.patch.object(going_on, "os", SimpleNamespace(kill=watch.killed)),
        mock.patch.object(writer, "ThreadPoolExecutor", Writer),
        mock.patch.object(draft, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic)),
        wrapping(draft.Draft, "commit", committed),
        wrapping(draft.Draft, "abandon", committed),
        wrapping(train, "prepare_for_loss", watch.begins),
        wrapping(train, "finish", ending),
        wrapping(going_on.LostRanks, "leave", leaving),
        wrapping(Learner, "load", watch.loaded),
        wrapping(Learner, "scaled_gradient", watch.scaled),
        wrapping(AskingCentre, "push", watch.pushed),
        wrapping(AddingMaster, "refresh", watch.refreshed),
        wrapping(Network, "loss_and_gradient", gradient),
    )
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield
