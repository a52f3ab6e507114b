"""Search for faults in random orders of events: the program's own protocols on simulated ranks.

    python -m tests.search [RECORD] [--from SEED] [--to SEED] [--seconds S]

Every seed is a training of the digits: an algorithm, 2 to 7 ranks, ways and order of exchange, gradients whose times
have a heavy tail, updates and copies that take time, and messages that are late. Some have a stop request to any rank
at any time, some a rank that stands still for a while, some a rank that dies; what was interrupted is resumed, on
another number of ranks. What must hold:

- It ends, on all ranks alike. Nobody waits in vain, no message is left, and a rank that has died is named.
- Each checkpoint knows every position: trained on, or to be handed out, never both.
- Each sample of an epoch is trained on once, in one session or the next.
- A copy of Θ is whole: that of one version, never of two. Replicas are identical.
- Whatever comes when, nothing that a rank gives is lost or counted twice (`conserved.py`).
- Where the order of everything is fixed, a training ends with the parameters that plain NumPy comes to, one thing
  after another (`sequential.py`), also after a stop and a resume on as many ranks. In single precision, a synchronous
  one that was stopped and resumed ends with the parameters of one that was not.

A seed that fails is printed, and fails again in the same way whenever it is run. RECORD gets a line for each seed; the
next start goes on behind its last one.
"""

import argparse
import contextlib
import io
import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any
from unittest import mock

import h5py
import numpy as np
import xxhash
from threadpoolctl import threadpool_limits

from mpitrain import flat
from mpitrain.api.options import TrainOptions
from mpitrain.api.train import train_on
from mpitrain.checkpoint import writer
from mpitrain.errors import Overdue
from mpitrain.flat import Array
from mpitrain.mpi import Transport
from mpitrain.protocols.messages import Gradient
from mpitrain.protocols.server import by_messages
from mpitrain.protocols.server.merged import MergedCentre
from mpitrain.protocols.server.updates import Updates
from mpitrain.protocols.server.versioned import Memory, Versioned
from mpitrain.sampling.queue import Work
from mpitrain.signals import STOPPED, Stop
from mpitrain.simulation.job import Aborted, Job
from mpitrain.simulation.messages import ClusterNetwork, Link
from mpitrain.simulation.scheduler import Deadlock
from mpitrain.training.gradients import Learner
from tests.leftovers import left_behind

from .conserved import Ledger, keeping
from .sequential import Piece, Start, expected

SERVERS = ("asgd", "mdownpour", "adownpour", "mvadownpour")
CENTRES = (*SERVERS, "easgd", "eamsgd", "downpour", "admm")
SYNCHRONOUS = ("allreduce", "hybrid", "easgd-sync", "eamsgd-sync")
NAMES = (*CENTRES, *SYNCHRONOUS, "sparse-delta", "block-momentum")
LOCAL_STEPS = ("easgd", "eamsgd", "downpour", "admm", "easgd-sync", "eamsgd-sync", "block-momentum")
LARGEST = ("block-momentum",)
WRITING = 2.0  # seconds that a dead job's checkpoint is given; one that waits for a dead rank's piece never ends
SAMPLES, EPOCHS = 1438, 2  # of the digits; of a training
PIECE = 300  # elements of the network's 610
COMMON = ("run.progress=none", "run.device=cpu", "run.threads=1", "run.checkpoint_every=0", f"training.epochs={EPOCHS}")
SMALL = 'model.layers=[{kind="fully-connected", units=8}, {kind="relu"}, {kind="fully-connected"}]'

#: The first seed that draws more keys, the first one that computes in double precision and mostly in a fixed order, and
#: the first one whose deltas are of the largest entries.
MORE, EXACT, SPARSE = 14_000, 28_000, 42_000
STAGES = "stages=[{{at=0.3, minibatch=24, learning_rate=0.01}}, {{at=1.2, minibatch=10{}}}]"
WATCHED = ("run.evaluate_every=0.3", "run.trace=true", "run.train_subset=100", "training.dtype=float64")
OF_CENTRES = ("algorithm.start=different", "algorithm.rate_decay=0.1", "algorithm.plateau=5")
#: By algorithm, what else can be set.
KEYS = {
    "asgd": ("algorithm.preset=chan2014", "algorithm.minibatches=3", "algorithm.until_free=true"),
    "easgd": (*OF_CENTRES, "algorithm.centre=sharded", "algorithm.optimizer={name='adamw'}"),
    "eamsgd": (*OF_CENTRES, "algorithm.centre=sharded"),
    "downpour": (*OF_CENTRES[1:], "algorithm.centre=sharded"),
    "admm": (*OF_CENTRES, "algorithm.delta=0.5"),
    "mdownpour": (),
    "adownpour": ("algorithm.tau=3",),
    "mvadownpour": ("algorithm.tau=3",),
    "allreduce": ("algorithm.batch=global", "algorithm.bucket_mb=0.001", "algorithm.optimizer={name='adamw'}"),
    "hybrid": ("algorithm.scheme=a", "algorithm.scheme=c", "algorithm.fc_batch=sub", "algorithm.overlap=false"),
    "easgd-sync": ("algorithm.start=different", "algorithm.plateau=5"),
    "eamsgd-sync": ("algorithm.start=different", "algorithm.rate_decay=0.1"),
    "block-momentum": ("algorithm.preset=bmuf", "algorithm.preset=diloco", "algorithm.preset=slowmo"),
    "sparse-delta": (
        "algorithm.synchronous=true",
        "algorithm.target_density=0.01",
        "algorithm.window=1",
        "algorithm.patience=0",
        "algorithm.bits=4",
        "algorithm.codec=auto",
        "algorithm.check_every=0.05",
    ),
}


@dataclass(frozen=True)
class Case:
    """What a seed stands for. Times are virtual seconds; infinite: never."""

    keys: tuple[str, ...]
    ranks: int
    two_a_node: bool
    jitter: float
    stop_at: float
    stopped: int  # the rank that is asked
    faults: tuple[tuple[int, float, float], ...]  # rank; from when until when it stands still
    resumed_on: int  # ranks
    updates: float  # the mean time of an update, a copy, an evaluation

    @property
    def dies(self) -> int | None:
        """The rank that dies."""
        return next((rank for rank, _, until in self.faults if until == inf), None)


def name_of(seed: int) -> str:
    """Its algorithm."""
    return NAMES[seed % len(NAMES)]


def case(seed: int) -> Case:
    """The case of a seed."""
    random, name = np.random.default_rng(seed), name_of(seed)
    ranks = int(random.integers(2, 8))
    keys = [f"algorithm.name={name}", f"training.minibatch={random.choice([16, 32, 64])}"]
    keys.append("model.width=0.25" if name == "hybrid" else SMALL)
    if name in LOCAL_STEPS:
        keys.append(f"algorithm.tau={int(random.integers(1, 7))}")
    if name in CENTRES:
        keys.append(f"run.exchange={random.choice(['auto', 'messages', 'one-sided'])}")
        if name not in ("asgd", "adownpour") and random.random() < 0.2:
            keys += ["algorithm.sampling=chunked", "algorithm.chunk=50", "algorithm.loaders=3"]
    if name in (*CENTRES, "sparse-delta") and random.random() < 0.4:
        keys.append("algorithm.order=round-robin")
    team = name == "sparse-delta" and random.random() < 0.4
    if team:
        ranks = int(random.choice([2, 4, 6]))
        keys.append(f"run.team={random.choice(['2', 'node'])}")
    if random.random() < 0.6:
        keys.append(f"run.checkpoint_samples={int(random.integers(200, 1500))}")
    stop_at = float(random.random() * 3 / ranks) if random.random() < 0.4 else inf
    faults = []
    if random.random() < 0.3:
        at = float(random.random() * 3 / ranks)
        until = inf if random.random() < 0.4 else at + float(10 ** random.uniform(-3, 2))
        faults.append((int(random.integers(ranks)), at, until))
    jitter, apart = float(10 ** random.uniform(-5, -0.5)), team or bool(random.random() < 0.5)
    again = ranks if name in SYNCHRONOUS and random.random() < 0.7 else int(random.integers(2, 8))
    again += again % 2 if team else 0  # teams are of two
    if seed >= MORE:  # where messages are late, one-sided access does not seem to be served
        sharded = "run.exchange=messages" not in keys and jitter < 1e-3
        keys += more(name, seed, min(ranks, again) // (2 if team else 1), sharded)
    if seed >= EXACT:
        keys, again = exact(name, seed, keys, ranks, again)
    if seed >= SPARSE:
        keys = largest(name, seed, keys)
    asked, updates = int(random.integers(ranks)), float(10 ** random.uniform(-4, -1.5)) * (random.random() < 0.5)
    return Case(tuple(keys), ranks, apart, jitter, stop_at, asked, tuple(faults), again, updates)


def more(name: str, seed: int, ranks: int, sharded: bool) -> list[str]:
    """Further keys that these ranks can train with; `sharded`: also those of a centre in windows.

    Other random numbers than the case's choose them, so that the first seeds stay what they were.
    """
    random, workers = np.random.default_rng((seed, MORE)), ""
    if name == "sparse-delta" or (name in CENTRES and name != "admm"):
        workers = f", workers={int(random.integers(max(ranks - (name in CENTRES), 1))) + 1}"
    choices = [*WATCHED, *KEYS[name], STAGES.format(workers)]
    if not sharded:
        choices = [key for key in choices if key != "algorithm.centre=sharded"]
    chosen = random.choice(choices, int(random.integers(1, 4)), replace=False)
    taken = dict(key.split("=", 1) for key in chosen)
    return [f"{key}={value}" for key, value in taken.items()]


#: By algorithm, what else the seeds from EXACT on can set.
OPTIMIZERS = tuple(f"training.optimizer={name}" for name in ("adamw", "momentum", "nesterov"))
PER_SAMPLE = "training.rate_per=sample training.learning_rate=0.001"
FURTHER = {
    "easgd": OPTIMIZERS,
    "easgd-sync": OPTIMIZERS,
    "allreduce": (*OPTIMIZERS, PER_SAMPLE),
    "block-momentum": (
        *(*OPTIMIZERS, "algorithm.buffers=reset", "algorithm.buffers=averaged", "algorithm.order=free"),
        *("algorithm.order=round-robin", "algorithm.order=round-robin algorithm.weights=samples"),
        "algorithm.order=round-robin algorithm.speeds=[1.0,0.4,0.7] training.optimizer=nesterov",
        "algorithm.order=round-robin algorithm.look_ahead=start algorithm.momentum=0.6 algorithm.buffers=reset",
        "algorithm.order=free algorithm.look_ahead=step algorithm.rate=0.8 training.optimizer=adamw",
    ),
    "asgd": (
        *("algorithm.momentum=0.5", "algorithm.gradient_decay=0.8", PER_SAMPLE, "algorithm.stale_limit=2"),
        "algorithm.staleness=inverse algorithm.gradient_decay=1",
        "algorithm.staleness=gap-aware algorithm.gradient_decay=1",
        "algorithm.staleness=gap-aware algorithm.gradient_decay=1 algorithm.momentum=0.5 algorithm.stale_limit=3",
        "algorithm.staleness=dana algorithm.gradient_decay=1 algorithm.momentum=0.5",
    ),
    "sparse-delta": ("algorithm.clip=2", "algorithm.bits=32", PER_SAMPLE),
}

#: What a peer's turn puts into its residual, and how peers' entries are combined.
TURNS = (
    "algorithm.tau=3",
    "algorithm.tau=4 algorithm.error_decay=0.9",
    "algorithm.momentum=0.5",
    "algorithm.target_density=0.02 algorithm.density_warmup=1.5",
    "algorithm.top_k=3 algorithm.chunk=50 algorithm.target_density=0 algorithm.clip=0 algorithm.tau=2",
)
COMBINED = ("algorithm.combine=mean", "algorithm.combine=sum")


def exact(name: str, seed: int, keys: list[str], ranks: int, again: int) -> tuple[list[str], int]:
    """The keys of a training that can mostly be compared with a sequential one, and the ranks of its resume.

    In stages, workers come and go.
    """
    random = np.random.default_rng((seed, EXACT))
    taken = dict(key.split("=", 1) for key in keys)
    if name in (*CENTRES, "sparse-delta") and random.random() < 0.6:
        taken["algorithm.order"] = "round-robin"
    if name in FURTHER and random.random() < 0.6:
        further = dict(key.split("=", 1) for key in str(random.choice(FURTHER[name])).split())
        if "training.optimizer" in further:
            taken.pop("algorithm.optimizer", None)  # which is to be given once
        taken |= further
    if name in (*CENTRES, "sparse-delta") and name != "admm" and random.random() < 0.4:
        most = max((min(ranks, again) // (2 if "run.team" in taken else 1)) - (name in CENTRES), 1)
        first, second, third = (int(random.integers(most)) + 1 for _ in range(3))
        if random.random() < 0.5:  # a worker that stood by comes back
            first, second, third = most, 1, most
            if name == "easgd":  # AdamW's factors depend on the number of its steps
                taken.pop("algorithm.optimizer", None)
                taken["training.optimizer"] = "adamw"
        stages = f"{{at=0, workers={first}}}, {{at=0.4, minibatch=24, workers={second}}}, {{at=1.1, workers={third}}}"
        taken["stages"] = f"[{stages}]"
    if name == "block-momentum" and "algorithm.order" in taken:
        taken = {key: value for key, value in taken.items() if value not in ("slowmo", "averaged")}
    if taken.get("algorithm.staleness") == "dana":  # of which stages cannot change workers or momentum
        taken.pop("stages", None)
    if "algorithm.plateau" in taken or (name in ("easgd", "eamsgd", "downpour") and random.random() < 0.2):
        taken["algorithm.plateau"] = "1"  # a loss that does not fall for a few minibatches divides the rate
    if name in SERVERS and np.random.default_rng((seed, EXACT, 1)).random() < 0.2:
        taken["algorithm.plateau"] = "2"
    taken["training.dtype"] = "float64"
    return [f"{key}={value}" for key, value in taken.items()], ranks if random.random() < 0.6 else again


def largest(name: str, seed: int, keys: list[str]) -> list[str]:
    """The keys of a training whose deltas are of the largest entries, if it is one of those that can be."""
    random, taken = np.random.default_rng((seed, SPARSE)), dict(key.split("=", 1) for key in keys)
    if name == "sparse-delta":
        return [*keys, *str(random.choice(TURNS)).split(), *str(random.choice(COMBINED)).split()]
    if name not in LARGEST:
        return keys
    if "algorithm.order" in taken:
        return keys
    taken = {key: value for key, value in taken.items() if value not in ("bmuf", "averaged")}
    chunk = int(random.choice([16, 50, 4096]))
    taken |= {"algorithm.chunk": str(chunk), "algorithm.top_k": str(int(random.integers(1, 8)))}
    taken |= {
        "algorithm.bits": str(random.choice([1, 2, 4, 32])),
        "algorithm.error_decay": str(random.choice([1, 0.9])),
    }
    return [f"{key}={value}" for key, value in taken.items()]


@dataclass
class Session:
    """What one start of the program did."""

    ended: list[int]  # exit statuses
    said: str
    left: list[str]
    loaded: Counter[int] = field(default_factory=Counter)  # positions
    torn: list[str] = field(default_factory=list)  # copies of Θ that are of no version
    writing: list[Future[Any]] = field(default_factory=list)  # of checkpoints; a process would end with its rank
    ledger: Ledger = field(default_factory=Ledger)


def session(what: Case, seed: int, folder: Path, resume: bool = False) -> Session:
    """One start of the program, in this folder."""
    random, requests = np.random.default_rng((seed, 1 + resume)), [Stop() for _ in range(what.ranks)]

    def seconds(rank: int, samples: int) -> float:
        if job.scheduler.now > what.stop_at:
            requests[what.stopped].flag = True
        return 1e-4 * samples * float(random.pareto(1.2) + 0.1)

    def work(rank: int, kind: str, amount: int) -> float:
        return float(random.exponential(what.updates))

    nodes = [rank // 2 for rank in range(what.ranks)] if what.two_a_node else None
    network = ClusterNetwork(Link(1e-4, 1e8), jitter=what.jitter, seed=seed)
    stops = {rank: [(begins, until)] for rank, begins, until in what.faults}
    job = Job[int](what.ranks, network, nodes=nodes, seconds=seconds, stops=stops, work=work)
    options = TrainOptions(
        overrides=(*COMMON, *what.keys), out=None if resume else folder, resume=folder if resume else None
    )

    def program(transport: Transport) -> int:
        return train_on(transport, options, requests[transport.rank])

    told, said = Session([], "", []), io.StringIO()
    with (
        watching(told),
        keeping(told.ledger),
        in_pieces(PIECE if "training.dtype=float64" in what.keys else flat.BLOCK),
        threadpool_limits(1),
        contextlib.redirect_stderr(said),
    ):
        try:
            told.ended = job.run(program)
        except Aborted as error:
            told.ended = [error.status] * what.ranks
        except (Overdue, Deadlock) as error:  # at the start; when all others have ended
            if isinstance(error, Deadlock) and str(error) != f"rank {what.dies} has died":
                raise
            told.ended = [1] * what.ranks
            said.write(str(error))
    wait(told.writing, WRITING)
    told.said, told.left = said.getvalue(), left_behind(job)
    return told


@contextlib.contextmanager
def in_pieces(elements: int) -> Iterator[None]:
    """Cut vectors into pieces of so many elements, as large ones are."""
    with contextlib.ExitStack() as stack:
        for cut in (flat.blocks, flat.block_slices):
            stack.enter_context(mock.patch.object(cut, "__defaults__", (elements,)))
        for module in (flat, by_messages):
            stack.enter_context(mock.patch.object(module, "BLOCK", elements))
        stack.enter_context(mock.patch.object(by_messages, "block_of", lambda vector: elements))
        yield


@contextlib.contextmanager
def watching(told: Session) -> Iterator[None]:
    """Note which positions are loaded, and compare each copy of Θ with what the master wrote under its version."""
    load, read, accepts, known = Learner.load, MergedCentre.read, Updates.accepts, dict[int, int]()

    def loaded(learner: Learner, work: Work) -> Any:
        first = work.epoch * SAMPLES + work.start
        told.loaded.update(range(first, first + work.count))
        return load(learner, work)

    def taken(updates: Updates, gradient: Array, message: Gradient, worker: int) -> bool:
        if accepted := accepts(updates, gradient, message, worker):
            return accepted
        first = message.work.epoch * SAMPLES + message.work.start
        told.loaded.subtract(range(first, first + message.work.count))  # they are to be loaded again
        return False

    def compare(index: int, theta: Array) -> None:
        if known.setdefault(index, xxhash.xxh3_64_intdigest(theta)) != xxhash.xxh3_64_intdigest(theta):
            told.torn.append(f"a copy of Θ {index} is not Θ {index}")

    def copied(centre: MergedCentre, piece: slice, out: Array) -> int:
        index = read(centre, piece, out)
        compare(index, out)
        return index

    def noting(kind: Any) -> Any:
        writing = kind.writing

        @contextlib.contextmanager
        def noted(memory: Any, index: int) -> Iterator[None]:
            with writing(memory, index):
                yield
            compare(index, memory.theta)

        return mock.patch.object(kind, "writing", noted)

    class Writer(ThreadPoolExecutor):
        def submit(self, *arguments: Any, **more: Any) -> Future[Any]:
            told.writing.append(super().submit(*arguments, **more))
            return told.writing[-1]

    patches = [
        *((Learner, "load", loaded), (MergedCentre, "read", copied), (Updates, "accepts", taken)),
        (writer, "ThreadPoolExecutor", Writer),
    ]
    with contextlib.ExitStack() as stack:
        for each in (*(mock.patch.object(*patch) for patch in patches), noting(Versioned), noting(Memory)):
            stack.enter_context(each)
        yield


def checkpoints(folder: Path) -> list[tuple[dict[str, int], Counter[int]]]:
    """The counters of each checkpoint, oldest first, and the positions that are to be handed out again."""
    found = []
    for state in sorted(folder.glob("checkpoints/[0-9]*/state.h5")):
        with h5py.File(state) as file:
            left = Counter[int]()
            for epoch, start, count, *_ in file["ranges"][:]:
                left.update(range(epoch * SAMPLES + start, epoch * SAMPLES + start + count))
            found.append((json.loads(file.attrs["numbers"]), left))
    return found


def fault(seed: int, folder: Path) -> str:
    """What is wrong with the training of a seed, which writes to this folder; "" for nothing."""
    what, run = case(seed), folder / "run"
    try:
        first = session(what, seed, run)
        wrong = _wrong(what, run, first)
        kept = checkpoints(run)
        unfinished = first.ended[0] and kept and kept[-1][0]["position"] < EPOCHS * SAMPLES
        if not wrong and not first.ended[0]:
            wrong = _elsewhere(what, run)
        if wrong or not unfinished:
            return "; ".join(wrong)
        again, begun = replace(what, ranks=what.resumed_on, stop_at=inf, faults=()), start_of(run)
        second = session(again, seed, run, resume=True)
        wrong = _wrong(again, run, second) + _lost(what, kept[-1], first, second) + _forgotten(begun, second)
        if not wrong and what.ranks == what.resumed_on:
            wrong = _elsewhere(what, run, begun)
        if not wrong and _comparable(what, first):
            session(replace(what, stop_at=inf, faults=()), seed, folder / "whole")
            wrong = [] if _parameters(run) == _parameters(folder / "whole") else ["resumed, it ends elsewhere"]
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "; ".join(f"resumed: {text}" for text in wrong)


def _wrong(what: Case, run: Path, told: Session) -> list[str]:
    """What is wrong with one session."""
    if 2 in told.ended:
        return [f"refused: {told.said}"]
    died = what.dies is not None and told.ended[0] == 1
    summary = {} if died else json.loads((run / "summary.json").read_text())
    whole = summary.get("exit_reason") != "finished" or summary["samples"] == EPOCHS * SAMPLES
    states = checkpoints(run)
    right = {
        f"exit statuses {told.ended}": len(set(told.ended)) == 1 and told.ended[0] in (0, STOPPED, int(died)),
        f"{summary.get('samples')} samples": whole,
        f"left: {told.left}": died or not told.left,
        "replicas differ": summary.get("replicas_identical", True),
        f"rank {what.dies} is not named: {told.said!r}": not died or _names(told.said, what.dies),
        f"checkpoints {states}": all(_whole(numbers, left) for numbers, left in states),
    }
    return (
        [text for text, holds in right.items() if not holds]
        + told.torn[:1]
        + ([] if died else told.ledger.at_the_end())
    )


def _names(said: str, rank: int | None) -> bool:
    """Whether a message names this rank. Within a blocking call of MPI a rank cannot know which one is missing."""
    return f"rank {rank}" in said or "another rank is silent" in said


def _whole(numbers: dict[str, int], left: Counter[int]) -> bool:
    """Whether a checkpoint knows every position once."""
    once = not left or (max(left.values()) == 1 and max(left) < numbers["position"])
    return once and numbers["trained"] + left.total() == numbers["position"]


def _lost(what: Case, state: tuple[dict[str, int], Counter[int]], first: Session, second: Session) -> list[str]:
    """What is wrong with the samples of a training of two sessions, between which there was this checkpoint."""
    (numbers, left), end = state, EPOCHS * SAMPLES
    stopped = what.dies is None or first.ended[0] == STOPPED
    trained = Counter(range(numbers["position"])) - left
    due = left + Counter(range(numbers["position"], end))
    wrong = []
    if stopped and +first.loaded != trained:
        wrong.append(f"loaded and not trained, or trained twice: {list((first.loaded - trained).items())[:5]}")
    if +second.loaded != due:
        wrong.append(f"{(second.loaded - due).total()} samples again, {(due - second.loaded).total()} lost")
    return wrong


def _forgotten(begun: Start, second: Session) -> list[str]:
    """Whether peers that go on hold other residuals in all than those that stopped."""
    held = [book.residual for book in second.ledger.books]
    if not held or np.allclose(sum(held), begun.vectors["residual"], rtol=0, atol=1e-4):
        return []
    return ["the residuals of a resumed run are not those of the checkpoint"]


def start_of(run: Path) -> Start:
    """What the newest checkpoint holds, with the sum of the ranks' residuals: where a server goes on."""
    newest = sorted(run.glob("checkpoints/[0-9]*/state.h5"))[-1]
    residual: Any = 0
    for piece in newest.parent.glob("rank-*.h5"):
        with h5py.File(piece) as file:
            residual = residual + file["residual"][:].astype(float) if "residual" in file else residual
    with h5py.File(newest) as file:
        numbers, ranges = json.loads(file.attrs["numbers"]), file["ranges"][:]
        vectors = {name: vector[:] for name, vector in file.items() if name != "ranges"}
    begins = [epoch * SAMPLES + start for epoch, start, *_ in ranges]
    again = sorted(Piece(begin, begin + count) for begin, (_, _, count, *_) in zip(begins, ranges, strict=True))
    vectors["residual"] = residual
    return Start(vectors, *(numbers[name] for name in ("index", "trained", "position")), again, numbers.get("rate"))


def _elsewhere(what: Case, run: Path, begun: Start | None = None) -> list[str]:
    """Which vectors of the last checkpoint are not those of a sequential training, if the order was fixed.

    A server's workers begin anew when it is resumed, from the checkpoint `begun`; others go on as if uninterrupted.
    """
    keys = dict(key.split("=", 1) for key in what.keys)
    name = keys["algorithm.name"]
    served = name in SERVERS or (name == "block-momentum" and "algorithm.order" in keys)
    alone = what.ranks - (name in CENTRES or served) == 1  # one worker has no order to heed
    if served and not alone and keys.get("algorithm.order") != "round-robin":
        return []
    fixed = keys.get("algorithm.order") == "round-robin" or keys.get("algorithm.synchronous") == "true"
    if keys.get("training.dtype") != "float64" or not (fixed or name not in (*CENTRES, "sparse-delta") or alone):
        return []
    if alone and not fixed and (keys.get("algorithm.until_free") or keys.get("algorithm.preset") == "chan2014"):
        return []  # which computes on as long as the master does
    want = expected((*COMMON, *what.keys), what.ranks, begun if served else None)
    found = start_of(run).vectors
    return [
        f"{name} is not what a sequential training comes to"
        for name, vector in want.items()
        if name in found and not np.linalg.norm(found[name] - vector) <= 1e-9 * max(np.linalg.norm(vector), 1e-9)
    ]


def _comparable(what: Case, first: Session) -> bool:
    """Whether a training in single precision that was resumed must end as one that was not interrupted."""
    synchronous = any(f"algorithm.name={name}" in what.keys for name in SYNCHRONOUS)
    return synchronous and "training.dtype=float64" not in what.keys and what.resumed_on == what.ranks


def _parameters(run: Path) -> str:
    return str(json.loads((run / "summary.json").read_text())["parameters_sha256"])


def main() -> None:
    """One seed after another; the seeds that fail, and how many there were of each algorithm."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path, nargs="?")
    parser.add_argument("--from", type=int, default=0, dest="first", metavar="SEED")
    parser.add_argument("--to", type=int, default=56_000, dest="last", metavar="SEED")
    parser.add_argument("--seconds", type=float, default=inf, metavar="S")
    options = parser.parse_args()
    lines = options.record.read_text().splitlines() if options.record and options.record.exists() else []
    done = [json.loads(line) for line in lines]
    began, seed = time.monotonic(), max([options.first, *(each["seed"] + 1 for each in done)])
    while seed < options.last and time.monotonic() - began < options.seconds:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            wrong = fault(seed, Path(folder))
        if wrong:
            print(f"seed {seed}: {case(seed)}: {wrong[:500]}", flush=True)
        done.append({"seed": seed, "algorithm": name_of(seed), "wrong": wrong})
        if options.record:
            with options.record.open("a") as file:
                file.write(json.dumps(done[-1]) + "\n")
        seed += 1
    for name in NAMES:
        of_it = [each["wrong"] for each in done if each["algorithm"] == name]
        print(f"{name}: {len(of_it)} seeds, {sum(map(bool, of_it))} failed")
    print(f"go on with --from {seed}")
