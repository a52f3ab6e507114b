"""How much sooner than one rank do two workers come to the same error? On the benchmarks of `compare --on`.

    python benchmarks/sooner/sooner.py speech|glyphs|bytes OUT [--simulated] [--workers N] [--rates F ...] [--seeds N]
        [--longer F] [--only METHOD ...] [--set KEY=VALUE]

The target is the test error (`bytes`: the bits a byte) that one rank of `msgd` has after 60 % of its time, at the best
rate on seed 1 and as the median over the seeds. Every method then takes the rate that comes to the target first on seed
1; printed are the median time over the seeds and how much sooner that is. Evaluations take no time: they are made at
the end, of copies. With `--simulated` the time is virtual, on the ranks of benchmarks/cluster.toml. Runs that are there
are not repeated.
"""

import argparse
import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from launch import CLUSTER, attempt, simulate, table

from mpitrain import config as configuration
from mpitrain.report.benchmarks.known import NAMES, base_of, require_data

MOMENTUM = {"algorithm.momentum": 0.9}
ONE = {"algorithm.name": "msgd", **MOMENTUM}
DANA = {"algorithm.name": "asgd", "algorithm.staleness": "dana", **MOMENTUM}
#: Keys, and whether a rank serves.
METHODS: dict[str, tuple[dict[str, Any], bool]] = {
    "allreduce": ({"algorithm.name": "allreduce", **MOMENTUM}, False),
    "block-momentum": ({"algorithm.name": "block-momentum", "algorithm.preset": "bmuf", "algorithm.tau": 10}, False),
    "sparse-delta": ({"algorithm.name": "sparse-delta", "algorithm.target_density": 0.02}, False),
    "easgd": ({"algorithm.name": "easgd", "algorithm.tau": 10}, True),
    "eamsgd": ({"algorithm.name": "eamsgd", "algorithm.tau": 10, "algorithm.delta": 0.9}, True),
    "asgd, DANA": ({**DANA, "algorithm.minibatches": 1}, True),
    "asgd, DANA, n = 4": ({**DANA, "algorithm.minibatches": 4}, True),
}


class Study:
    """The trainings of one benchmark below a folder."""

    def __init__(self, words: argparse.Namespace) -> None:
        require_data(words.name, words.set)
        self._words, self._base = words, base_of(words.name, words.set)
        #: What is to fall, and what it is divided by.
        self._figure, self._unit = ("test_loss", math.log(2)) if words.name == "bytes" else ("test_error", 1.0)
        given = [*self._base.settings, *words.set]
        training = configuration.load(self._base.path, given).training
        self._rate, self._every, self._epochs = training.learning_rate, words.every * training.epochs, training.epochs
        self._keys = {key: _value(text) for key, text in (each.split("=", 1) for each in given)}

    def curve(self, ranks: int, method: dict[str, Any], factor: float, seed: int) -> tuple[list[float], list[float]]:
        """Seconds and test errors (or bits a byte) of a training; empty where it diverged."""
        own = factor * self._rate * (1.0 - float(method.get("algorithm.momentum", method.get("algorithm.delta", 0.0))))
        keys = method | {"training.learning_rate": round(own, 8), "training.seed": seed, "model.seed": seed}
        quiet = {"run.progress": "none", "run.evaluate_every": self._every, "run.evaluate_late": True}
        pushed = f"-n{method['algorithm.minibatches']}" if method.get("algorithm.minibatches", 1) != 1 else ""
        title = "-".join([f"{method['algorithm.name']}{pushed}", f"{ranks}", f"r{factor:g}", f"s{seed}"])
        settings = {**self._keys, **quiet, "run.checkpoint_every": 0, **keys}
        if method is not ONE and self._words.longer != 1:
            title += f"-x{self._words.longer:g}"
            settings["training.epochs"] = round(self._words.longer * self._epochs, 6)
        run = self._words.out / f"{title}{'-simulated' * self._words.simulated}"
        told = (
            simulate(run, ranks, CLUSTER, settings, self._base.path)
            if self._words.simulated
            else attempt(run, ranks, settings, self._base.path)
        )
        records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines() if told else [])
        found = sorted(
            (each["seconds"], each[self._figure] / self._unit) for each in records if each["event"] == "evaluate"
        )
        return [seconds for seconds, _ in found], [error for _, error in found]

    def curves(self, ranks: int, method: dict[str, Any], factor: float) -> list[tuple[list[float], list[float]]]:
        """Of all seeds."""
        return [self.curve(ranks, method, factor, seed) for seed in range(1, self._words.seeds + 1)]


def reached(curve: tuple[list[float], list[float]], target: float) -> float:
    """Seconds to an error, linearly between evaluations; infinity where it is not reached."""
    seconds, errors = curve
    for number, error in enumerate(errors):
        if error <= target:
            if number == 0:
                return seconds[0]
            share = (errors[number - 1] - target) / (errors[number - 1] - error)
            return seconds[number - 1] + share * (seconds[number] - seconds[number - 1])
    return math.inf


def at_share(curve: tuple[list[float], list[float]], share: float) -> float:
    """The error after a share of the time."""
    seconds, errors = curve
    return float(np.interp(share * seconds[-1], seconds, errors)) if seconds else math.inf


def main() -> None:
    """One table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("out", type=Path)
    parser.add_argument("--simulated", action="store_true")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--rates", type=float, nargs="+", default=[0.5, 1.0, 2.0, 4.0], help="times the benchmark's own"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--every", type=float, default=0.1, help="share of a training between two evaluations")
    parser.add_argument("--longer", type=float, default=1.0, help="times the samples of one rank that methods train on")
    parser.add_argument("--only", nargs="+", choices=METHODS, default=list(METHODS), metavar="METHOD")
    parser.add_argument("--set", action="append", default=[])
    words = parser.parse_args()
    study = Study(words)
    shown = "{:.3f} bits a byte" if words.name == "bytes" else "{:.1%}"

    best = min(words.rates, key=lambda factor: at_share(study.curve(1, ONE, factor, 1), 0.6))
    alone = study.curves(1, ONE, best)
    target = statistics.median(at_share(curve, 0.6) for curve in alone)
    base = statistics.median(reached(curve, target) for curve in alone)
    rows = [["`msgd`, one rank", f"{best:g}", f"{base:.2f}", "1", _ends(alone, shown)]]
    for name in words.only:
        method, serves = METHODS[name]
        ranks = words.workers + serves
        rate = min(words.rates, key=lambda factor: reached(study.curve(ranks, method, factor, 1), target))
        curves = study.curves(ranks, method, rate)
        times = [reached(curve, target) for curve in curves]
        middle = statistics.median(times)
        each = f"{_figure(middle)} ({', '.join(map(_figure, times))})"
        rows.append([f"`{name}`", f"{rate:g}", each, f"{base / middle:.2f}", _ends(curves, shown)])
    unit = "virtual s" if words.simulated else "s"
    to = f"{unit} to {shown.format(target)}"
    print(table([f"{words.workers} workers", "rate", to, "sooner", "at the end"], rows))


def _figure(seconds: float) -> str:
    return f"{seconds:.2f}" if math.isfinite(seconds) else "never"


def _value(text: str) -> Any:
    """A number or a list, or else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _ends(curves: list[tuple[list[float], list[float]]], shown: str) -> str:
    return shown.format(statistics.median(errors[-1] if errors else math.inf for _, errors in curves))


if __name__ == "__main__":
    main()
