"""What more workers cost in accuracy per sample, and why (Chan & Lane 2014).

python benchmarks/papers/staleness/study.py limits           the largest stable rate by theory: no training
python benchmarks/papers/staleness/study.py grid CORPUS OUT  accuracy by workers, momentum, minibatches a push, and rate
python benchmarks/papers/staleness/study.py causes CORPUS OUT  one thing changed, at one worker's best rate (or --rate)
python benchmarks/papers/staleness/study.py equal CORPUS OUT  five workers against one: which rates reach its accuracy?
python benchmarks/papers/staleness/study.py cures CORPUS OUT  five workers with what later work does about staleness

`digits` for CORPUS takes the embedded digits. Workers take turns (`order = "round-robin"`), on simulated ranks, so that
every gradient of K workers is K − 1 pushes old, and every run is repeatable to the bit. Runs that are in OUT are not
repeated; `--rates R ...` tries other rates than those of the tables. A rate r is given as the distance that a
minibatch's gradient moves the parameters in the end: η/(1 − μ).
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import launch
from launch import CLUSTER, PERCEPTRON, simulate, table

COMMON: dict[str, Any] = {"run.checkpoint_every": 0, "run.progress": "none", "run.evaluate_every": 0}
SPEECH = COMMON | launch.SPEECH | {"training.epochs": 1, "training.minibatch": 128}
RATES = {"digits": (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4), "speech": (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)}
WORKERS = (1, 2, 3, 4, 5)


@dataclass(frozen=True)
class Point:
    """K workers, n minibatches a push, μ, β, r = η/(1 − μ), and the seed."""

    workers: int = 5
    minibatches: int = 1
    momentum: float = 0.9
    decay: float = 1.0
    rate: float = 0.1
    seed: int = 1
    cure: tuple[tuple[str, object], ...] = ()  # further keys

    @property
    def name(self) -> str:
        """Of the run's folder."""
        m, b = self.momentum, self.decay
        more = "".join(f"-{value}" for _, value in self.cure)
        return f"K{self.workers}-n{self.minibatches}-m{m:g}-b{b:g}-r{self.rate:g}-s{self.seed}{more}"

    @property
    def settings(self) -> dict[str, Any]:
        """Configuration keys."""
        return {
            "algorithm.name": "asgd",
            "algorithm.preset": "chan2014",
            "algorithm.order": "round-robin",
            "algorithm.minibatches": self.minibatches,
            "algorithm.momentum": self.momentum,
            "algorithm.gradient_decay": self.decay,
            "training.learning_rate": float(f"{self.rate * (1 - self.momentum):.6g}"),
            "training.seed": self.seed,
            "model.seed": 1,
            **dict(self.cure),
        }


class Study:
    """One corpus, and where its runs go."""

    def __init__(
        self, corpus: str, out: Path, more: dict[str, Any], rate: float | None = None, rates: list[float] | None = None
    ) -> None:
        self.rate = rate
        self.rates = rates or RATES["digits" if corpus == "digits" else "speech"]
        path = {"data.path": str(Path(corpus).resolve())}
        self.settings = (COMMON if corpus == "digits" else SPEECH | path) | more
        self.config = PERCEPTRON if corpus == "digits" else None
        self.out = out

    def run(self, point: Point) -> tuple[float, float]:
        """Test accuracy and cross-entropy at the end; 0 and infinity where it diverged."""
        ranks = 1 if point.workers == 1 else point.workers + 1
        told = simulate(self.out / point.name, ranks, CLUSTER, self.settings | point.settings, self.config)
        if told is None:
            return 0.0, float("inf")
        return 1 - told["test_error"], told["test_loss"]

    def best(self, point: Point) -> tuple[float, tuple[float, float]]:
        """The rate at which this point has the highest accuracy, and its results."""
        found = {rate: self.run(replace(point, rate=rate)) for rate in self.rates}
        return max(found.items(), key=lambda item: (item[1][0], -item[1][1]))

    def seeds(self, point: Point, seeds: Iterable[int] = (1, 2, 3)) -> tuple[str, float]:
        """Accuracy over the seeds as text, and its mean."""
        runs = [self.run(replace(point, seed=seed))[0] for seed in seeds]
        return f"{statistics.mean(runs):.2%} ± {statistics.stdev(runs):.2%}", statistics.mean(runs)


def limit(momentum: float, delay: int) -> float:
    """The largest r = h/(1 − μ) at which θ ← θ + v, v ← μv − hθ(t − delay) is stable, θ a direction of curvature 1.

    Its characteristic polynomial, times z: z^(D+2) − (1 + μ)z^(D+1) + μz^D + hz. Without delay the limit is
    2(1 + μ)/(1 − μ), and without momentum 2 sin(π/(4D + 2)).
    """
    low, high = 0.0, 8.0
    for _ in range(60):
        middle = (low + high) / 2
        powers = np.zeros(delay + 3)
        powers[:3] = 1.0, -(1 + momentum), momentum
        powers[-2] += middle
        stable = abs(np.roots(powers)).max() <= 1 + 1e-9
        low, high = (middle, high) if stable else (low, middle)
    return low / (1 - momentum)


def limits() -> None:
    """The largest stable rate times curvature."""
    rows = [[f"{mu:g}", *(f"{limit(mu, workers - 1):.3f}" for workers in WORKERS)] for mu in (0.0, 0.5, 0.9, 0.99)]
    print(table(["μ", *(f"K = {workers}" for workers in WORKERS)], rows))


def grid(study: Study) -> None:
    """Accuracy and cross-entropy by r; the best rate's in the last columns."""
    for minibatches in (1, 3):
        for momentum in (0.0, 0.9):
            rows = []
            for workers in WORKERS:
                point = Point(workers, minibatches, momentum)
                cells = [_cell(study.run(replace(point, rate=rate))) for rate in study.rates]
                rate, result = study.best(point)
                rows.append([workers, *cells, f"{rate:g}", f"{result[0]:.1%}"])
            print(f"\nn = {minibatches}, μ = {momentum:g}\n")
            print(table(["K", *(f"r = {rate:g}" for rate in study.rates), "best r", "accuracy"], rows), flush=True)


def causes(study: Study) -> None:
    """Five workers as in the paper, and with one thing changed."""
    for minibatches in (1, 3):
        rate = study.rate or study.best(Point(1, minibatches))[0]
        one, five = Point(1, minibatches, rate=rate), Point(5, minibatches, rate=rate)
        decayed = rate * 0.9**4
        rows = {
            "one worker": one,
            "five, as in the paper (μ = 0.9, β = 0.9)": replace(five, decay=0.9),
            "one worker at the rate that decay leaves, r·0.9⁴": replace(one, rate=float(f"{decayed:.4g}")),
            "five, no decay": five,
            "five, no momentum, the same r": replace(five, momentum=0.0, decay=0.9),
            "five, neither": replace(five, momentum=0.0),
            "one worker, no momentum, the same r": replace(one, momentum=0.0),
            "five, as in the paper, half the rate": replace(five, decay=0.9, rate=rate / 2),
            "five, as in the paper, a quarter": replace(five, decay=0.9, rate=rate / 4),
        }
        print(f"\nn = {minibatches}, r = {rate:g}\n")
        print(table(["", "accuracy, three seeds"], [[name, study.seeds(each)[0]] for name, each in rows.items()]))


def equal(study: Study) -> None:
    """One worker's best rate over all momenta, and five workers' relative loss at each of theirs."""
    for minibatches in (1, 3):
        candidates = [Point(1, minibatches, momentum) for momentum in (0.0, 0.9)]
        found = [(study.best(point), point) for point in candidates]
        (rate, _), point = max(found, key=lambda item: item[0][1][0])
        told, base = study.seeds(replace(point, rate=rate))
        rows = [[1, f"{point.momentum:g}", f"{rate:g}", told, "–"]]
        for momentum in (0.0, 0.5, 0.9):
            rate, _ = study.best(Point(5, minibatches, momentum))
            told, mean = study.seeds(Point(5, minibatches, momentum, rate=rate))
            rows.append([5, f"{momentum:g}", f"{rate:g}", told, f"{mean / base - 1:+.1%}"])
        print(f"\nn = {minibatches}\n")
        print(table(["workers", "μ", "best r", "accuracy, three seeds", "relative to one worker"], rows), flush=True)


def cures(study: Study) -> None:
    """One worker's best rate with momentum and its neighbours, n = 1: three seeds of each cure."""
    best = study.rate or study.best(Point(1))[0]
    rates = [rate for rate in study.rates if best / 4 <= rate <= best]
    five = Point(5)
    points = {
        "one worker": Point(1),
        "five, plain": five,
        "five, β = 0.9": replace(five, decay=0.9),
        "five, 1/(1 + staleness)": replace(five, cure=(("algorithm.staleness", "inverse"),)),
        "five, gap-aware": replace(five, cure=(("algorithm.staleness", "gap-aware"),)),
        "five, DANA": replace(five, cure=(("algorithm.staleness", "dana"),)),
        "five, at most 2 updates old": replace(five, cure=(("algorithm.stale_limit", 3),)),
        "five, a rate that falls to 0": replace(five, cure=(("training.schedule", "linear"),)),
        "five, a warm-up of 10%": replace(five, cure=(("training.warmup", "10%"),)),
        "five, DANA, both": replace(
            five,
            cure=(("algorithm.staleness", "dana"), ("training.schedule", "linear"), ("training.warmup", "10%")),
        ),
    }
    rows = [[name, *(study.seeds(replace(each, rate=r))[0] for r in rates)] for name, each in points.items()]
    print(table(["", *(f"r = {rate:g}" for rate in rates)], rows))


def _cell(result: tuple[float, float]) -> str:
    return "diverged" if result[1] == float("inf") else f"{result[0]:.1%}"


def main() -> None:
    """One table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=["limits", "grid", "causes", "equal", "cures"])
    parser.add_argument("corpus", nargs="?", default="digits")
    parser.add_argument("out", nargs="?", type=Path)
    parser.add_argument("--rate", type=float, help="r of causes, the highest of cures; default: one worker's best")
    parser.add_argument("--rates", type=float, nargs="+", metavar="R")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for all runs")
    words = parser.parse_args()
    if words.table == "limits":
        return limits()
    if words.out is None:
        parser.error("the folder OUT for the runs is missing")
    pairs = (word.split("=", 1) for word in words.set)
    study = Study(words.corpus, words.out, {key: json.loads(value) for key, value in pairs}, words.rate, words.rates)
    {"grid": grid, "causes": causes, "equal": equal, "cures": cures}[words.table](study)


if __name__ == "__main__":
    main()
