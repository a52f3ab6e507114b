"""What a seed of the search for faults without ranks stands for: the algorithm with its keys, and who is lost when."""

from dataclasses import dataclass
from math import inf

import numpy as np

from . import SAMPLES, SMALL

RATE, DEADLINE = 2.0**-6, 5.0  # of learning; seconds
COMMON = (
    *("run.progress=none", "run.device=cpu", "run.threads=1", "run.checkpoint_every=0", "run.lost_ranks=continue"),
    *("run.evaluate_every=0", f"run.deadline={DEADLINE}", f"training.learning_rate={RATE}", "training.dtype=float64"),
    "training.schedule=constant",
    SMALL,
)
ONCE, ABOUT, ANY = (1.0, 1.0), (0.999, 1.6), (-inf, inf)
SOME = (0.0, 1.0)  # a move is of less than a step
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
    ("downpour algorithm.tau=3", ONCE),
    ("downpour algorithm.tau=2 algorithm.order=round-robin", ONCE),
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
    ("easgd-sync algorithm.tau=2", SOME),
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
LARGEST = 12  # minibatch of a stage
STAGES = f"stages=[{{at=0.05,minibatch=5,learning_rate={RATE}}},{{at=0.1,minibatch={LARGEST},learning_rate={RATE}}}]"
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

    @property
    def minibatch(self) -> int:
        """Of the first stage."""
        return next(int(key.split("=")[1]) for key in self.keys if key.startswith("training.minibatch"))


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
