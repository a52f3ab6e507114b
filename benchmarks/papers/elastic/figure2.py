"""EASGD's Figure 2 to its protocol: test error against the clock, four workers, τ ∈ {1, 4, 16, 64}.

python benchmarks/papers/elastic/figure2.py CORPUS OUT [--set KEY=VALUE] [--rates FACTOR] [--taus 1 4 16 64] [--quick]

All runs start from one point (`model.seed = 1`). Each method tries every rate of RATES times FACTOR with
`training.seed = 1`; that of the smallest test error is run with three seeds, as in the paper (Zhang, Choromanska &
LeCun 2015, §5.2). The ranks and the clock are simulated (benchmarks/cluster.toml: a core for each). `digits` for CORPUS
takes the embedded digits and a small perceptron. Writes OUT/figure2.md and, with matplotlib, OUT/figure2.png; runs that
are in OUT are not repeated.
"""

import argparse
import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpitrain.report.comparison.table import time_to
from mpitrain.report.runs import read_run

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import launch
from launch import CLUSTER, PERCEPTRON, simulate, table

COMMON: dict[str, Any] = {"model.seed": 1, "run.checkpoint_every": 0, "run.progress": "none"}
DIGITS = COMMON | {"training.epochs": 30, "training.minibatch": 16, "run.evaluate_every": 1}
SPEECH = COMMON | launch.SPEECH | {"training.epochs": 3, "training.minibatch": 64, "run.evaluate_every": 0.25}
#: Learning rates tried. Momenta are the defaults, 0.9 (the paper, in trainings of hours: 0.99).
RATES = {
    "sgd": (0.4, 0.2, 0.1, 0.05),
    "msgd": (0.08, 0.04, 0.02, 0.01),
    "downpour": (0.2, 0.1, 0.05, 0.02),
    "adownpour": (0.2, 0.1, 0.05, 0.02),
    "mvadownpour": (0.2, 0.1, 0.05, 0.02),
    "mdownpour": (0.02, 0.01, 0.005, 0.002),
    "easgd": (0.8, 0.4, 0.2, 0.1),
    "eamsgd": (0.16, 0.08, 0.04, 0.02),
}
#: Methods of one rank, and those whose τ is 1.
ALONE, EVERY_MINIBATCH = ("sgd", "msgd"), ("mdownpour",)
Curve = list[dict[str, Any]]


@dataclass(frozen=True)
class Method:
    """An algorithm at one period."""

    name: str
    tau: int

    def settings(self, rate: float) -> dict[str, Any]:
        """Configuration keys."""
        keys = {"algorithm.name": self.name, "training.learning_rate": rate}
        return keys if self.name in (*ALONE, *EVERY_MINIBATCH) else keys | {"algorithm.tau": self.tau}

    @property
    def where(self) -> str:
        """The beginning of its run folders' names."""
        return self.name if self.name in (*ALONE, *EVERY_MINIBATCH) else f"{self.name}-t{self.tau}"


class Study:
    """The runs of one corpus."""

    def __init__(self, corpus: str, out: Path, more: dict[str, Any], factor: float, quick: bool = False) -> None:
        path = {"data.path": str(Path(corpus).resolve())}
        self.settings = (DIGITS if corpus == "digits" else SPEECH | path) | more
        self.config = PERCEPTRON if corpus == "digits" else None
        self.out, self.factor = out, factor
        self.rates, self.seeds = (1, (1,)) if quick else (None, (1, 2, 3))

    def curve(self, method: Method, rate: float, seed: int) -> Curve | None:
        """The evaluations of a run; None if it diverged."""
        folder = self.out / "runs" / f"{method.where}-{rate:g}-{seed}"
        ranks = 1 if method.name in ALONE else 5
        settings = self.settings | method.settings(rate) | {"training.seed": seed}
        told = simulate(folder, ranks, CLUSTER, settings, self.config)
        return None if told is None else read_run(folder, folder.name).events("evaluate")

    def best(self, method: Method) -> tuple[float, list[Curve | None]] | None:
        """The best rate and its run with each seed; None if all rates diverged."""
        tried = []
        for rate in (float(f"{each * self.factor:g}") for each in RATES[method.name][: self.rates]):
            curve = self.curve(method, rate, 1)
            if curve is not None:
                tried.append((_least(curve), rate))
        if not tried:
            return None
        rate = min(tried)[1]
        return rate, [self.curve(method, rate, seed) for seed in self.seeds]


def _least(curve: Curve) -> float:
    return float(min(record["test_error"] for record in curve))


def row(method: Method, found: tuple[float, list[Curve | None]] | None, target: float) -> list[Any]:
    """Rate, least and last error, and virtual seconds to the target, over the seeds."""
    tau = "–" if method.name in ALONE else method.tau
    if found is None:
        return [method.name, tau, "", "diverged", "", ""]
    rate, runs = found
    curves = [curve for curve in runs if curve is not None]
    lost = f", {len(runs) - len(curves)} diverged" if len(curves) < len(runs) else ""
    times = [seconds for curve in curves if (seconds := time_to(curve, "test_error", target)) is not None]
    clock = f"{statistics.mean(times):.2f} s" if times else "–"
    clock += f", {len(times)} of {len(runs)}" if 0 < len(times) < len(runs) else ""
    last = [curve[-1]["test_error"] for curve in curves]
    return [method.name, tau, f"{rate:g}", _spread([_least(curve) for curve in curves]) + lost, _spread(last), clock]


def _spread(values: list[float]) -> str:
    return f"{statistics.mean(values):.1%}" + (f" ± {statistics.stdev(values):.1%}" if len(values) > 1 else "")


def plot(path: Path, panels: dict[int, dict[str, list[Curve | None]]]) -> None:
    """A column for each τ: training loss, test loss and test error over virtual seconds; a line for each run."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print(f"{path}: not drawn, matplotlib is missing (the extra mpitrain[plots])", file=sys.stderr)
        return
    shown = ("train_subset_loss", "test_loss", "test_error")
    figure = Figure(figsize=(3.2 * len(panels), 7.2), dpi=80, layout="constrained")
    grid = figure.subplots(len(shown), len(panels), squeeze=False, sharey="row")
    for column, (tau, methods) in enumerate(panels.items()):
        for axes, y in zip(grid[:, column], shown, strict=True):
            for number, (name, runs) in enumerate(methods.items()):
                for run, curve in enumerate(curve for curve in runs if curve is not None):
                    x = [record["seconds"] for record in curve]
                    label = name if run == 0 else None
                    axes.plot(x, [record[y] for record in curve], f"C{number}", linewidth=0.8, label=label)
            axes.set(xlabel="virtual seconds", ylabel=y.replace("_", " "), yscale="log")
        grid[0, column].set_title(f"τ = {tau}")
    grid[0, 0].legend(fontsize=7)
    figure.savefig(path)


def main() -> None:
    """The table and the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus")
    parser.add_argument("out", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for all runs")
    parser.add_argument("--rates", type=float, default=1.0, metavar="FACTOR")
    parser.add_argument("--taus", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--quick", action="store_true", help="one rate and one seed")
    parser.add_argument("--target", type=float, help="the test error of the last column", default=0.05)
    words = parser.parse_args()
    pairs = (word.split("=", 1) for word in words.set)
    more = {"run.train_subset": 1000} | {key: json.loads(value) for key, value in pairs}
    study = Study(words.corpus, words.out, more, words.rates, words.quick)
    rows, panels = [], {}
    for tau in words.taus:
        panels[tau] = {}
        for name in RATES:
            method = Method(name, 1 if name in EVERY_MINIBATCH else tau)
            found = study.best(method)
            panels[tau][name] = found[1] if found else []
            if tau == words.taus[0] or name not in (*ALONE, *EVERY_MINIBATCH):
                rows.append(row(method, found, words.target))
    header = ["method", "τ", "best rate", "least test error", "last test error", f"to {words.target:.0%}"]
    (words.out / "figure2.md").write_text(table(header, rows) + "\n")
    plot(words.out / "figure2.png", panels)


if __name__ == "__main__":
    main()
