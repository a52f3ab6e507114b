"""EASGD's Figure 4 in small: four workers on synthetic images of ImageNet's size, the recipe's network and exchange.

    OPENBLAS_NUM_THREADS=1 python benchmarks/papers/elastic/figure4.py OUT [--width 0.03] [--samples 4096] [--epochs 8]

Virtual seconds of the paper's cluster to three test errors: `msgd` on one rank, `downpour` with τ = 1, `easgd` and
`eamsgd` with τ = 10, each at the rate that comes to the least of them first. `jobs/configs/easgd-imagenet2015.toml`
with minibatches of 32 and a momentum of 0.9 where the paper, in trainings of weeks, has 0.99. Runs in OUT are not
repeated.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from launch import simulate, table, unscaled
from recipes import CASES, RECIPES, corpus

from mpitrain.report.comparison.table import time_to
from mpitrain.report.runs import read_run

NAME, POINTS = "easgd-imagenet2015", 8  # evaluations of a run of several workers
WORKERS = 4
ERRORS = (0.5, 0.2, 0.05)
METHODS: dict[str, tuple[int, dict[str, Any], tuple[float, ...]]] = {
    "msgd": (1, {"algorithm.momentum": 0.9}, (0.001, 0.0025, 0.005)),
    "downpour": (5, {"algorithm.tau": 1}, (0.0025, 0.005, 0.0125)),
    "easgd": (5, {"algorithm.tau": 10}, (0.025, 0.05, 0.1)),
    "eamsgd": (5, {"algorithm.tau": 10, "algorithm.delta": 0.9}, (0.0025, 0.005, 0.01)),
}


def curve(out: Path, method: str, rate: float, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """The evaluations of a run; none if it diverged."""
    ranks, more, _ = METHODS[method]
    recipe = out / f"{method}.toml"
    text = (RECIPES / f"{NAME}.toml").read_text().split("[algorithm]")
    keys = text[1].split("[training]")
    sampling = "" if ranks == 1 else 'sampling = "chunked"\nloaders = 8\nchunk = 64\n'
    recipe.write_text(f"{text[0]}[algorithm]\nname = '{method}'\n{sampling}\n[training]{keys[1]}")
    points = POINTS * (1 if ranks > 1 else WORKERS)  # at about the same times
    given = settings | more | {"training.learning_rate": rate}
    given["run.evaluate_every"] = settings["training.epochs"] / points
    folder = out / f"{method}-{rate:g}"
    told = simulate(folder, ranks, unscaled(CASES[NAME].cluster, out), given, recipe)
    return read_run(folder, folder.name).events("evaluate") if told else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--width", type=float, default=0.03)
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--epochs", type=float, default=8)
    parser.add_argument("--rates", type=int, default=3, help="how many of each method's are tried")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS), help="all by default")
    options = parser.parse_args()
    where = options.out / "corpus"
    if not where.exists():
        corpus(where, CASES[NAME], options.samples)
    settings = {
        "data.path": str(where),
        "model.width": options.width,
        "training.minibatch": 32,
        "training.epochs": options.epochs,
        "run.checkpoint_every": 0,
        "run.train_subset": 0,
        "run.progress": "none",
        "run.threads": 1,
    }
    rows = []
    for method in options.methods:
        rates = METHODS[method][2][: options.rates]
        curves = {rate: curve(options.out, method, rate, settings) for rate in rates}
        times = {rate: [time_to(each, "test_error", error) for error in ERRORS] for rate, each in curves.items()}
        rate = min(rates, key=lambda rate: times[rate][-1] or float("inf"))
        loss = f"{curves[rate][-1]['test_loss']:.3f}" if curves[rate] else "diverged"
        rows.append([f"`{method}`", f"{rate:g}", *("–" if s is None else f"{s:.2f} s" for s in times[rate]), loss])
    print(table(["method", "rate", *(f"to {error:.0%}" for error in ERRORS), "test loss at the end"], rows))


if __name__ == "__main__":
    main()
