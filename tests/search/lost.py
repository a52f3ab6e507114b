"""Search for faults where a training goes on without ranks (`run.lost_ranks = "continue"`).

    python -m tests.search lost [--seeds A B]

Every seed is a training on 2 to 5 simulated ranks (`mortals.py`), of which one or two die or stand still: at a call of
MPI, or at any time between calls; at the start, in training, while the others recover, at the end. What must hold:

- The training ends on all ranks that live, with every sample, and with equal replicas.
- Where it goes on, all ranks have the same parameters, and know of the same samples that they are trained on.
- These samples are in the parameters: each one's "gradient" is a number at a place of its own. What a sample adds is
  known for rules that only add, and otherwise lies between what one and what two of them would.
- All others are trained on from there, each once; and where a master or a replica is left, none twice.
- A centre is its start and whole moves of its workers, all that they know to have come.
"""

import argparse
import contextlib
import io
import itertools
import json
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import h5py
import numpy as np
import xxhash
from threadpoolctl import threadpool_limits

from mpitrain.api import going_on, train
from mpitrain.api.options import TrainOptions
from mpitrain.checkpoint import draft, lease, writer
from mpitrain.cli.train import outlasting
from mpitrain.flat import Array
from mpitrain.models.network import Network
from mpitrain.protocols.server.adding_master import AddingMaster
from mpitrain.protocols.server.by_messages import AskingCentre, ServingCentre
from mpitrain.sampling.queue import Queue, Work
from mpitrain.signals import Stop
from mpitrain.simulation.job import Aborted
from mpitrain.simulation.network import ClusterNetwork, Link
from mpitrain.training.context import Session
from mpitrain.training.gradients import Learner

from . import SAMPLES, SMALL, checkpoints, in_pieces
from .mortals import Mortals

RATE, DEADLINE, PROCESSES = 2.0**-6, 5.0, 1 << 30  # of learning; seconds; a number that is no process's
COMMON = (
    *("run.progress=none", "run.device=cpu", "run.threads=1", "run.checkpoint_every=0", "run.lost_ranks=continue"),
    *("run.evaluate_every=0", f"run.deadline={DEADLINE}", f"training.learning_rate={RATE}", "training.dtype=float64"),
    "training.schedule=constant",
    SMALL,
)
ONCE, ABOUT, ANY = (1.0, 1.0), (0.999, 1.6), (-inf, inf)
SOME = (0.0, 3.0)  # a move is of less than a step; what a lost worker has not reported is done again, after each loss
MOMENTUM = "algorithm.momentum=0.25"
#: Algorithms with their keys, and what a sample's gradient adds at the least and at the most, in learning rates.
WAYS: tuple[tuple[str, tuple[float, float]], ...] = (
    ("asgd", ONCE),
    (f"asgd {MOMENTUM}", ABOUT),
    ("asgd algorithm.minibatches=3 algorithm.order=round-robin", ONCE),
    ("asgd algorithm.minibatches=2 algorithm.until_free=true", ONCE),
    (f"asgd {MOMENTUM} algorithm.staleness=dana", ABOUT),
    (f"asgd {MOMENTUM} algorithm.staleness=dana algorithm.order=round-robin", ABOUT),
    ("asgd algorithm.staleness=inverse", (0.0, 1.0)),
    ("mdownpour algorithm.order=round-robin algorithm.delta=0.25", (1.2, 1.9)),
    ("adownpour algorithm.tau=3", ONCE),
    ("mvadownpour", ONCE),
    ("easgd algorithm.tau=2", SOME),
    ("easgd algorithm.tau=3 algorithm.order=round-robin", SOME),
    ("eamsgd algorithm.tau=2", ANY),
    ("downpour algorithm.tau=3", SOME),
    ("downpour algorithm.tau=2 algorithm.order=round-robin", SOME),
    ("admm algorithm.tau=2 algorithm.order=round-robin", ANY),
    ("allreduce algorithm.momentum=0", ONCE),
    (f"allreduce {MOMENTUM} algorithm.bucket_mb=0.001", ABOUT),
    ("allreduce training.optimizer=adamw", ANY),
    ("block-momentum algorithm.tau=4 algorithm.momentum=0", ONCE),
    (f"block-momentum algorithm.tau=3 {MOMENTUM}", ABOUT),
    ("block-momentum algorithm.preset=sparseloco algorithm.tau=3 algorithm.chunk=50", ANY),
    ("block-momentum algorithm.preset=diloco algorithm.tau=3", ANY),
    ("block-momentum algorithm.tau=3 algorithm.momentum=0 algorithm.order=free", ONCE),
    ("block-momentum algorithm.tau=3 algorithm.momentum=0 algorithm.order=round-robin", ONCE),
    ("easgd-sync algorithm.tau=2", (0.0, 1.0)),
    ("eamsgd-sync algorithm.tau=2", ANY),
    ("sparse-delta algorithm.bits=32 algorithm.threshold=0.001", ONCE),
    ("sparse-delta algorithm.threshold=0.5", ONCE),
    ("sparse-delta algorithm.tau=3 algorithm.bits=32 algorithm.threshold=0.001", ONCE),
    ("sparse-delta algorithm.order=round-robin algorithm.bits=32 algorithm.threshold=0.001", ONCE),
    ("sparse-delta algorithm.order=round-robin algorithm.tau=3 algorithm.window=1", ONCE),
    ("sparse-delta algorithm.window=1 algorithm.patience=0 algorithm.threshold=0.5", ONCE),
    ("sparse-delta algorithm.preset=many-peers algorithm.chunk=50 algorithm.top_k=8", ANY),
    ("sparse-delta algorithm.chunk=50 algorithm.top_k=8 algorithm.bits=2 algorithm.codec=auto", ONCE),
    (f"sparse-delta algorithm.target_density=0.05 {MOMENTUM}", ABOUT),
)
#: Those whose workers have one minibatch at hand.
SINGLE = ("asgd", f"asgd {MOMENTUM}", "asgd algorithm.staleness=inverse")
#: The first seed that draws further keys, and may lose a third rank; these keys.
MORE = 1000
WATCHED = (
    *("run.evaluate_every=0.1", "run.evaluate_every=0.1 run.train_subset=100", "run.evaluate_every=0.05"),
    *("run.trace=true", "run.gradient_statistics=true", "run.checkpoint_samples=40", "run.checkpoints_kept=1"),
)
STAGES = f"stages=[{{at=0.05,minibatch=5,learning_rate={RATE}}},{{at=0.1,minibatch=12,learning_rate={RATE}}}]"
CHUNKED = "algorithm.sampling=chunked algorithm.chunk=20 algorithm.loaders=2"
WHERE = ("start", "call", "call", "time", "time", "time", "end")


@dataclass(frozen=True)
class Loss:
    """A rank that dies, or stands still for `seconds`: `calls` calls of MPI after a moment, or with `late` this many
    seconds after it, wherever it is then. `where`: that moment: the start, the end of the training, the `number`-th
    minibatch that anybody loads, or the others' leaving after the first loss."""

    where: str
    rank: int
    number: int
    calls: int
    late: float
    seconds: float


@dataclass(frozen=True)
class Case:
    """What a seed stands for."""

    way: str
    adds: tuple[float, float]
    keys: tuple[str, ...]
    ranks: int
    losses: tuple[Loss, ...]
    jitter: float
    slowness: float  # mean seconds until a death is heard of
    updates: float
    epochs: float

    @property
    def total(self) -> int:
        """Samples of the training."""
        return round(self.epochs * SAMPLES)


def case(seed: int) -> Case:
    """The case of a seed."""
    random = np.random.default_rng((seed, 3))
    way, adds = WAYS[seed % len(WAYS)]
    name, *keys = way.split()
    ranks, minibatch = int(random.integers(2, 6)), int(random.choice([8, 16]))
    epochs = float(random.choice([0.15, 0.3, 0.3, 1.1]))
    together = name in ("allreduce", "easgd-sync", "eamsgd-sync", "block-momentum") and "order" not in way
    minibatch //= 2 if together else 1
    keys += [f"algorithm.name={name}", f"training.minibatch={minibatch}", f"training.epochs={epochs}"]
    if random.random() < 0.4:
        keys.append(f"run.checkpoint_samples={int(random.integers(60, 300))}")
    if ranks > 2 and random.random() < 0.2:
        keys.append("run.spares=1")
    loads = round(epochs * SAMPLES) // minibatch
    losses = [_loss(random, ranks, loads, str(random.choice(WHERE)))]
    if ranks > 2 and random.random() < 0.4:
        where = "recovery" if random.random() < 0.6 else str(random.choice(WHERE))
        second = _loss(random, ranks, loads, where)
        losses += [second] if second.rank != losses[0].rank else []
    times = (float(10 ** random.uniform(low, high)) for low, high in ((-5, -2), (-5, -1), (-4.5, -2)))
    jitter, slowness, updates = times
    updates *= float(random.random() < 0.5)
    if seed >= MORE:
        keys += more(random, way)
        if len(losses) == 2 and ranks > 3 and random.random() < 0.5:
            third = _loss(random, ranks, loads, str(random.choice(["recovery", *WHERE])))
            losses += [third] if third.rank not in [loss.rank for loss in losses] else []
    return Case(way, adds, tuple(keys), ranks, tuple(losses), jitter, slowness, updates, epochs)


def more(random: np.random.Generator, way: str) -> list[str]:
    """Further keys of a way."""
    name, choices = way.split()[0], [*WATCHED]
    if name != "sparse-delta":  # whose samples count by the minibatch of their stage
        choices += [STAGES]
    if name in ("easgd", "eamsgd", "downpour", "mdownpour", "mvadownpour"):
        choices += [CHUNKED, CHUNKED]
    chosen = random.choice(choices, int(random.integers(1, 3)), replace=False)
    return [key for each in chosen for key in each.split()]


def _loss(random: np.random.Generator, ranks: int, loads: int, where: str) -> Loss:
    seconds = inf
    if random.random() < 0.2:
        seconds = float(random.choice([0.5 * DEADLINE, 3 * DEADLINE, 1e6]))
    late = float(10 ** random.uniform(-5, -1.5)) if where == "time" or random.random() < 0.2 else 0.0
    calls = int(random.integers(1, 400 if where in ("start", "recovery") else 120))
    return Loss(where, int(random.integers(ranks)), int(random.integers(1, loads + 1)), calls, late, seconds)


# ---- one training


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
        if moved is None or not any(
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


@dataclass
class Told:
    """What a training came to."""

    watch: Watch
    job: Mortals
    statuses: list[int]
    said: str
    error: str = ""

    @property
    def met(self) -> list[str]:
        """What came up."""
        lost, starts = len(self.job.dead), len(self.watch.starts)
        ended = ["ended by an early loss"] if self.error else []
        return [*ended, *[f"{lost} lost"] * (lost > 0), *[f"{starts - 1} times gone on"] * (starts > 1)]


def trained(what: Case, seed: int, run: Path) -> Told:
    """A training in this run folder."""
    random = np.random.default_rng((seed, 1))

    def seconds(rank: int, samples: float) -> float:
        return 1e-4 * samples * float(random.pareto(1.2) + 0.1)

    def work(rank: int, kind: str, amount: float) -> float:
        return float(random.exponential(what.updates)) if what.updates else 0.0

    network = ClusterNetwork(Link(1e-4, 1e8), jitter=what.jitter, seed=seed)
    job = Mortals(what.ranks, seed, what.slowness, DEADLINE, network=network, seconds=seconds, work=work)
    options = TrainOptions(overrides=(*COMMON, *what.keys), out=run)
    told, said = Told(Watch(what, job), job, [], ""), io.StringIO()
    with watching(told.watch), in_pieces(60), threadpool_limits(1), contextlib.redirect_stderr(said):
        try:
            told.statuses = job.run(lambda transport: outlasting(transport, lambda: options, Stop()))
        except Aborted as error:
            told.error = str(error)
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)[-3:]
            told.error = f"{type(error).__name__}: {error} ({'; '.join(f'{f.name}:{f.lineno}' for f in frames)})"
    told.said = said.getvalue()
    return told


# ---- what must hold


def fault(seed: int, folder: Path) -> str:
    """What is wrong with the training of a seed, which writes to this folder; "" for nothing."""
    return "; ".join(wrong(case(seed), folder / "run", trained(case(seed), seed, folder / "run")))


def wrong(what: Case, run: Path, told: Told) -> list[str]:
    """The same."""
    watch, job = told.watch, told.job
    training = what.ranks - sum(key.startswith("run.spares") for key in what.keys)
    if told.error:
        if "none is left that has trained" in told.said:  # but spares, who cannot know what the others came to
            return [] if job.dead.keys() | set(job.results) >= set(range(training)) else [told.said]
        early = job.struck and len(watch.begun) < training and "ended the job" in told.error
        return [] if early else [f"{told.error}: {told.said[-700:]}"]
    if set(told.statuses) != {0}:
        return [f"exit statuses {told.statuses}: {told.said[-700:]}"]
    summary = json.loads((run / "summary.json").read_text())
    found = [*watch.wrong[:1]]
    if summary["exit_reason"] != "finished" or summary["samples"] != what.total:
        found.append(f"{summary['exit_reason']} after {summary['samples']} samples")
    if not summary.get("replicas_identical", True):
        found.append("replicas differ")
    for numbers, left in checkpoints(run):
        once = not left or (max(left.values()) == 1 and max(left) < numbers["position"])
        if not (once and numbers["trained"] + left.total() == numbers["position"]):
            found.append(f"a checkpoint has {numbers} and hands {left.total()} samples out again")
    starts = [*watch.starts.values()]
    for number, start in enumerate(starts):
        found += [f"start {number}: {text}" for text in _of_start(what, watch, start)]
    again, lost = (starts[-1].loaded - starts[-1].due).total(), (starts[-1].due - starts[-1].loaded).total()
    found += [f"at the end {again} samples again, {lost} lost"] if again or lost else []
    found += _content(what, watch, _at_the_end(what, run), Counter(range(what.total)), "at the end")
    return found + _repeated(what, starts, 0 in job.dead)


def _repeated(what: Case, starts: list[Start], served: bool) -> list[str]:
    """Whether more is done again after one loss than was at hand, where a replica or the server is left."""
    keeps = what.way.startswith("allreduce") or (what.way in SINGLE and not served)
    if not keeps or len(what.losses) > 1 or len(starts) < 2 or len(starts[0].queues) < starts[0].ranks:
        return []
    before, after = starts[0], starts[1]
    again = ((before.trained | before.loaded) - after.trained).total()
    minibatch = next(int(key.split("=")[1]) for key in what.keys if key.startswith("training.minibatch"))
    return [f"{again} samples are trained on again"] if again > before.ranks * minibatch else []


def _of_start(what: Case, watch: Watch, start: Start) -> list[str]:
    """What is wrong with what the ranks of a start begin with, and load."""
    found = []
    hashes = {xxhash.xxh3_64_hexdigest(each) for each in start.parameters.values()}
    queues = {(queue.position, tuple(queue.returned)) for queue in start.queues.values()}
    if len(hashes) > 1 or len(queues) > 1:
        found.append(f"ranks begin with {len(hashes)} parameters and {len(queues)} queues")
    if start.loaded - start.due:
        found.append(f"{(start.loaded - start.due).total()} samples are loaded that are not due")
    theta = next(iter(start.parameters.values()))
    return found + _content(what, watch, theta, start.trained, "", start is next(iter(watch.starts.values())))


def _at_the_end(what: Case, run: Path) -> Array:
    """The parameters, with what peers have not sent."""
    newest = sorted(run.glob("checkpoints/[0-9]*/state.h5"))[-1]
    with h5py.File(newest) as file:
        theta = np.array(file["theta"][:])
    for piece in newest.parent.glob("rank-*.h5") if what.way.startswith("sparse-delta") else ():
        with h5py.File(piece) as file:
            minibatch = next(int(key.split("=")[1]) for key in what.keys if key.startswith("training.minibatch"))
            theta -= file["residual"][:] * RATE / minibatch
    return theta


def _content(
    what: Case, watch: Watch, theta: Array, samples: Counter[int], when: str, first: bool = False
) -> list[str]:
    """Whether parameters hold these samples."""
    assert watch.first_theta is not None
    found = (watch.first_theta - theta) / RATE
    times = np.bincount([position % theta.size for position in samples.elements()], minlength=theta.size)
    (least, most), peers = what.adds, what.way.startswith("sparse-delta")
    if peers and what.adds in (ONCE, ABOUT) and not (when and not watch.job.dead):
        least = 0.0  # what a lost rank had not sent is lost, and what others have not sent is not here
    with np.errstate(invalid="ignore"):
        low, high = np.nan_to_num(least * times, nan=0.0), np.nan_to_num(most * times, nan=0.0)
    outside = np.flatnonzero((found < low - 1e-4) | (found > high + 1e-4))
    if what.adds == ANY or (what.adds is SOME and not when) or not outside.size:
        return []
    at = outside[0]
    return [f"{when} {outside.size} samples are not in the parameters as they should: {found[at]} for {times[at]}"]


def main(words: list[str]) -> int:
    """One seed after another; those that fail, and how often each way of training was tried."""
    parser = argparse.ArgumentParser(
        "python -m tests.search lost", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 1000), metavar=("A", "B"))
    parser.add_argument("--every", type=int, default=1, metavar="N")
    options = parser.parse_args(words)
    tried, failed, met = Counter[str](), Counter[str](), Counter[str]()
    for seed in range(*options.seeds, options.every):
        what = case(seed)
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            told = trained(what, seed, Path(folder) / "run")
            said = "; ".join(wrong(what, Path(folder) / "run", told))
        tried[what.way] += 1
        failed[what.way] += bool(said)
        met.update(told.met)
        if said:
            print(f"seed {seed}: {what}:\n    {said[:900]}", flush=True)
        if seed % 100 == 99:
            print(f"{seed + 1}: {failed.total()} failed of {tried.total()}, {dict(met)}", flush=True)
    for way, count in tried.items():
        print(f"{way}: {count} seeds, {failed[way]} failed")
    return int(bool(failed.total()))
