"""The papers' speech tables on a corpus from `prepare speech`.

python -m mpitrain prepare speech CORPUS --language bn --hours 1 --classes 1998 --bins 23
python benchmarks/papers/speech/study.py workers CORPUS OUT      Chan & Lane's Tables 1 and 2: 1 to 5 workers
python benchmarks/papers/speech/study.py causes CORPUS OUT       why four workers learn less an epoch than one
python benchmarks/papers/speech/study.py minibatch CORPUS OUT    Zhang's Figure 2

Runs that are in OUT are not repeated. `--set KEY=VALUE` overrides what the tables set.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from mpitrain.report.comparison.table import time_to
from mpitrain.report.runs import read_run

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from launch import run, table

COMMON: dict[str, Any] = {"training.seed": 1, "run.checkpoint_every": 0, "run.threads": 1, "model.dropout": 0.0}
CHAN: dict[str, Any] = COMMON | {
    "algorithm.name": "asgd",
    "algorithm.preset": "chan2014",
    "algorithm.minibatches": 1,
    "data.context": [11, 11],
    "model.preset": "chan2014-cnn",
    "model.width": 0.125,
    "training.minibatch": 256,
    "training.learning_rate": 0.01,
    "training.epochs": 4,
    "run.evaluate_every": 0.5,
}
ZHANG: dict[str, Any] = COMMON | {
    "algorithm.name": "sgd",
    "data.context": [5, 5],
    "model.preset": "zhang2013-dnn",
    "model.width": 0.125,
    "training.learning_rate": 0.5,
    "training.epochs": 1,
}


class Study:
    """A corpus, where its runs go, what all of them share, and Figure 2's minibatches and hidden layers."""

    def __init__(self, words: argparse.Namespace, fixed: dict[str, Any]) -> None:
        self.out, self._fixed = words.out, {"data.path": str(words.corpus.resolve())} | fixed
        self.sizes, self.layers = words.sizes, words.layers

    def run(self, name: str, ranks: int, settings: dict[str, Any]) -> dict[str, Any]:
        """A run's summary."""
        return run(self.out / name, ranks, settings | self._fixed)


def workers(study: Study) -> None:
    """One worker alone is msgd, as in the paper; more are a server and its workers."""
    alone = _alone(CHAN)
    results = {("fully connected", 1): study.run("dnn-1", 1, alone | {"model.preset": "chan2014-dnn"})}
    results["convolution", 1] = study.run("cnn-1", 1, alone)
    for count in (2, 3, 4, 5):
        results["convolution", count] = study.run(f"cnn-{count}", count + 1, CHAN)
    rows = [[model, count, *_accuracy(summary)] for (model, count), summary in results.items()]
    print(
        table(
            [
                "network",
                "workers",
                "frame accuracy",
                "cross-entropy",
                "noisy: accuracy",
                "seconds",
                "frames/s",
                "staleness",
            ],
            rows,
        )
    )
    print()
    print(table(["workers", *(f"to {mark:.0%}" for mark in MARKS)], _times(study.out)))


def causes(study: Study) -> None:
    """One worker, and four with one thing or another left out; without momentum the rate is 1/(1 − μ) times as high."""
    base = CHAN | {"model.width": 0.0625, "training.epochs": 1.5}
    single = {"algorithm.until_free": False}
    plain = {"algorithm.momentum": 0.0, "training.learning_rate": 0.1}
    four = {
        "preset": base,
        "no decay": base | {"algorithm.gradient_decay": 1.0},
        "no sums": base | single,
        "no momentum": base | plain,
        "neither": base | single | plain,
    }
    results = {"one worker": study.run("one", 1, _alone(base))}
    results |= {name: study.run(name.replace(" ", "-"), 5, settings) for name, settings in four.items()}
    rows = [[name, f"{1 - told['test_clean_error']:.1%}"] for name, told in results.items()]
    print(table(["", "frame accuracy"], rows))


def _alone(settings: dict[str, Any]) -> dict[str, Any]:
    """The same by classical momentum on one rank."""
    server = ("algorithm.preset", "algorithm.minibatches")
    kept = {key: value for key, value in settings.items() if key not in server}
    return kept | {"algorithm.name": "msgd", "algorithm.nesterov": False}


def minibatch(study: Study) -> None:
    """Seconds and error of plain SGD by size of the minibatch and hidden layers; the rate is the same for all."""
    rows = []
    for size in study.sizes:
        cells = []
        for layers in study.layers:
            told = study.run(
                f"minibatch-{size}-{layers}", 1, ZHANG | {"training.minibatch": size, "model.hidden_layers": layers}
            )
            cells += [f"{told['seconds']:.0f} s", f"{told['test_clean_error']:.1%}"]
        rows.append([size, *cells])
    header = [each for layers in study.layers for each in (f"{layers} hidden layers", "frame error")]
    print(table(["minibatch", *header], rows))


MARKS = (0.10, 0.20, 0.25)


def _accuracy(summary: dict[str, Any]) -> list[str]:
    return [
        f"{1 - summary['test_clean_error']:.1%}",
        f"{summary['test_clean_loss']:.2f}",
        f"{1 - summary['test_noisy_error']:.1%}",
        f"{summary['seconds']:.0f}",
        f"{summary['samples_per_second']:,.0f}",
        f"{summary['staleness_mean']:.1f}",
    ]


def _times(out: Path) -> list[list[Any]]:
    """Seconds to each accuracy with the efficiency in brackets, as in the paper's Table 2."""
    rows: list[list[Any]] = []
    alone: list[float | None] = []
    for count in (1, 2, 3, 4, 5):
        evaluations = read_run(out / f"cnn-{count}", f"cnn-{count}").events("evaluate")
        times = [time_to(evaluations, "test_clean_error", 1 - mark) for mark in MARKS]
        alone = alone or times
        cells = []
        for seconds, base in zip(times, alone, strict=True):
            cells.append("–" if seconds is None or base is None else f"{seconds:.0f} s ({base / seconds / count:.0%})")
        rows.append([count, *cells])
    return rows


TABLES = {"workers": workers, "causes": causes, "minibatch": minibatch}


def main() -> None:
    """One table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--sizes", type=int, nargs="+", default=[64 << n for n in range(7)], metavar="N")
    parser.add_argument("--layers", type=int, nargs="+", default=[1, 3, 5, 7], metavar="N")
    words = parser.parse_args()
    fixed = {key: json.loads(value) for key, value in (word.split("=", 1) for word in words.set)}
    TABLES[words.table](Study(words, fixed))


if __name__ == "__main__":
    main()
