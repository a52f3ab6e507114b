"""Test error and loss against wall clock and samples: τ ∈ {1, 4, 16, 64} with p = 4, and p ∈ {4, 8, 16} with τ = 10.

    python benchmarks/papers/elastic/sweep.py OUT [--data DIR --preset NAME] [--epochs E] [--only tau|workers|block]
        [--quick] [--methods NAME ...] [--set KEY=VALUE] [--unstable ERROR] [--rates FACTOR]

Figures 2 and 3 of Zhang, Choromanska & LeCun 2015: every method from the same start, each with every learning rate of
RATES times FACTOR, the best by its smallest test error. Runs are kept under OUT and not repeated. Writes
OUT/{tau,workers,block}.md and, with matplotlib, .png. A method whose loss is no longer finite at any of its rates
counts as diverged; one that ends with a test error above ERROR, 0.45 unless told, is marked unstable. The period
τ = 64 with p = 4 needs 6 epochs of the digits at least.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpitrain.report.runs import read_run

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import launch

#: Learning rates tried, by method (digits; the paper's own are for CIFAR). τ of mdownpour is always 1.
RATES = {
    "msgd": (0.02, 0.01),
    "downpour": (0.05, 0.02, 0.005),
    "adownpour": (0.05, 0.02, 0.005),
    "mvadownpour": (0.05, 0.02, 0.005),
    "mdownpour": (0.005, 0.002),
    "easgd": (0.1, 0.05),
    "eamsgd": (0.02, 0.01),
}
#: For block momentum and its presets, whose ranks all train (four ranks are four workers), and for what they are
#: compared with: rates around the best one of each, on speech with FACTOR 4. Those of `diloco` are AdamW's.
BLOCK_RATES = {
    "msgd": (0.08, 0.04, 0.02, 0.01),
    "downpour": (0.05, 0.02, 0.005),
    "easgd": (0.8, 0.4, 0.2, 0.1),
    "eamsgd": (0.16, 0.08, 0.04, 0.02),
    "block-momentum": (0.8, 0.4, 0.2, 0.1),
    "bmuf": (0.8, 0.4, 0.2, 0.1),
    "slowmo": (0.8, 0.4, 0.2, 0.1),
    "diloco": (0.001, 0.0005, 0.0003, 0.0001),
}
PRESETS = ("bmuf", "slowmo", "diloco")
TAUS, WORKERS, BLOCK_TAUS = (1, 4, 16, 64), (4, 8, 16), (16, 64)


@dataclass(frozen=True)
class Point:
    """One method at one period and number of workers."""

    name: str
    tau: int
    workers: int

    def settings(self, rate: float, base: dict[str, Any]) -> dict[str, Any]:
        """Configuration keys."""
        keys = {**base, "algorithm.name": self.name, "training.learning_rate": rate}
        if self.name in PRESETS:
            keys |= {"algorithm.name": "block-momentum", "algorithm.preset": self.name}
        return keys if self.name in ("msgd", "mdownpour") else {**keys, "algorithm.tau": self.tau}

    @property
    def ranks(self) -> int:
        """Rank 0 and the workers; one for the sequential method; no master where all ranks train."""
        return 1 if self.name == "msgd" else self.workers + (self.name not in ("block-momentum", *PRESETS))


def best(out: Path, point: Point, rates: tuple[float, ...], base: dict[str, Any]) -> tuple[float, Path] | None:
    """The learning rate and folder of the run with the smallest test error; None when all diverged."""
    found: list[tuple[float, float, Path]] = []
    for rate in rates:
        sequential = point.name == "msgd"
        where = f"{point.name}-{rate}" if sequential else f"{point.name}-t{point.tau}-p{point.workers}-{rate}"
        folder = out / where
        if launch.attempt(folder, point.ranks, point.settings(rate, base)) is None:
            continue
        errors = [record["test_error"] for record in read_run(folder, folder.name).events("evaluate")]
        found.append((min(errors), rate, folder))
    return min(found)[1:] if found else None


def study(
    out: Path,
    title: str,
    points: list[list[Point]],
    every: dict[str, tuple[float, ...]],
    base: dict[str, Any],
    quick: bool,
    unstable: float,
) -> None:
    """Run the points, a panel of them for each τ or p, and write table and plot."""
    rows, panels = [], []
    for panel in points:
        curves = {}
        for point in panel:
            rates = every[point.name][:1] if quick else every[point.name]
            chosen = best(out / "runs", point, rates, base)
            if chosen is None:
                rows.append([point.name, point.tau, point.workers, "", "diverged", "", "", "", ""])
                continue
            rate, folder = chosen
            curves[point.name] = read_run(folder, folder.name).events("evaluate")
            rows.append(row(point, rate, folder, curves[point.name], unstable))
        panels.append((panel[-1], curves))
    header = ["method", "τ", "p", "η", "least test error", "last test error", "last test loss", "last train loss", "s"]
    (out / f"{title}.md").write_text(launch.table(header, rows) + "\n")
    plot(out / f"{title}.png", title, panels)


def row(point: Point, rate: float, folder: Path, curve: list[dict[str, Any]], limit: float) -> list[Any]:
    """A line of the table."""
    summary = json.loads((folder / "summary.json").read_text())
    least, last = min(record["test_error"] for record in curve), curve[-1]
    unstable = " (unstable)" if last["test_error"] > limit else ""
    figures = [f"{least:.2%}", f"{last['test_error']:.2%}{unstable}", f"{last['test_loss']:.3f}"]
    figures += [f"{last['train_subset_loss']:.4f}", f"{summary['seconds']:.1f}"]
    return [point.name, point.tau, point.workers, rate, *figures]


def plot(path: Path, title: str, panels: list[tuple[Point, dict[str, list[dict[str, Any]]]]]) -> None:
    """Columns: τ or p; rows: training loss, test loss and error against the clock, and error against samples."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print(f"{path}: not drawn, matplotlib is missing (the extra mpitrain[plots])")
        return
    shown = (("seconds", "train_subset_loss"), ("seconds", "test_loss"), ("seconds", "test_error"))
    shown = (*shown, ("epoch", "test_error"))
    figure = Figure(figsize=(3.2 * len(panels), 2.4 * len(shown)), dpi=100, layout="constrained")
    grid = figure.subplots(len(shown), len(panels), squeeze=False)
    for column, (point, curves) in enumerate(panels):
        for axes, (x, y) in zip(grid[:, column], shown, strict=True):
            for name, curve in curves.items():
                axes.plot([record[x] for record in curve], [record[y] for record in curve], label=name, linewidth=1)
            axes.set(xlabel=x, ylabel=y.replace("_", " "), yscale="log")
        grid[0, column].set_title(f"τ = {point.tau}" if title != "workers" else f"p = {point.workers}")
    grid[0, 0].legend(fontsize=7)
    figure.savefig(path)


def main() -> None:
    """Both studies."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", default="", help="shard folder; default: the embedded digits")
    parser.add_argument("--preset", default="digits-cnn")
    parser.add_argument("--epochs", type=float, default=60.0)
    parser.add_argument("--only", choices=("tau", "workers", "block"))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for all runs")
    parser.add_argument("--rates", type=float, default=1.0, metavar="FACTOR")
    parser.add_argument("--unstable", type=float, default=0.45, metavar="ERROR")
    parser.add_argument("--quick", action="store_true", help="one learning rate, two τ, one p")
    parser.add_argument("--methods", nargs="+", choices=sorted({*RATES, *BLOCK_RATES}), help="default: all")
    options = parser.parse_args()
    base = {
        "data.path": options.data,
        "model.preset": options.preset,
        "training.epochs": options.epochs,
        "run.train_subset": 1000,
        "run.threads": 1,
        "run.checkpoint_every": 0,
        "run.progress": "none",
        **{key: json.loads(value) for key, value in (word.split("=", 1) for word in options.set)},
    }
    papers, block = (
        {
            name: tuple(rate * options.rates for rate in rates)
            for name, rates in table.items()
            if options.methods is None or name in options.methods
        }
        for table in (RATES, BLOCK_RATES)
    )
    how = (base, options.quick, options.unstable)
    taus, workers = (TAUS[:2], WORKERS[:1]) if options.quick else (TAUS, WORKERS)
    if options.only in (None, "tau"):
        study(
            options.out,
            "tau",
            [[Point(name, 1 if name == "mdownpour" else t, 4) for name in papers] for t in taus],
            papers,
            *how,
        )
    if options.only in (None, "block"):
        study(options.out, "block", [[Point(name, t, 4) for name in block] for t in BLOCK_TAUS], block, *how)
    if options.only in (None, "workers"):
        # Figure 3: DOWNPOUR and MDOWNPOUR at τ = 1, the elastic ones at τ = 10
        tau = {"downpour": 1, "mdownpour": 1, "easgd": 10, "eamsgd": 10, "msgd": 1}
        panels = [[Point(name, tau[name], p) for name in tau if name in papers] for p in workers]
        study(options.out, "workers", panels, papers, *how)


if __name__ == "__main__":
    main()
