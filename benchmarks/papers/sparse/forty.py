"""Strom 2015 on forty nodes: Figure 1, and Tables 3 and 4, on the simulated cluster of the paper.

    python -m mpitrain prepare speech BN --language bn --hours 0.5 --classes 200 --bins 20
    python benchmarks/papers/sparse/forty.py OUT BN epochs         Figure 1: error by epoch, one node and forty
    python benchmarks/papers/sparse/forty.py OUT BN thresholds     Table 3
    python benchmarks/papers/sparse/forty.py OUT BN sizes          Table 4
    python benchmarks/papers/sparse/forty.py OUT BN minibatches    §4: which minibatch would be selected at the start?

As in the paper, a network is pre-trained layer by layer, then trained on ten nodes for an epoch and on forty for the
others, of which the bytes and the speed are told. A minibatch of 16 stands for one of 1024; the paper's network is an
eighth as wide and has 200 outputs. Runs that are in OUT are not repeated. `--set KEY=VALUE` overrides the settings.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from launch import converged, table
from small import COMMON, Small, overrides

from mpitrain.models.network import build
from mpitrain.report.runs import read_run

NODES, FIRST, SAMPLES, THRESHOLD, WIDTH = 40, 10, 16, 2.0, 0.125
FACTORS = {0.5: 1.8, 1.0: 1.6, 1.5: 1.1, 2.25: 0.2, 3.0: -0.5, 3.75: -1.9}  # of Table 3's 4, and its reductions
#: Table 4: weights of the paper in millions, hidden layers, times their size, compression. What it calls 2x and 3x size
#: has the weights of 1.33 and 2 times as many units.
SIZES = {"5": (14.6, 5, 1.0, 846), "8": (21.7, 8, 1.0, 998), "5, × 1.33": (23.7, 5, 4 / 3, 1436)}
SIZES |= {"5, × 2": (48.8, 5, 2.0, 2871)}
SHARED: dict[str, Any] = COMMON | {
    "data.context": [8, 8],
    "model.preset": "strom2015-dnn",
    "pretraining.method": "layerwise",
    "pretraining.samples": 30_000,
    "training.minibatch": SAMPLES,
    "training.learning_rate": 0.01,
    "training.epochs": 4,
    "run.evaluate_every": 0.5,
}


def weights(layers: int = 5, times: float = 1.0) -> int:
    """How many the network has whose hidden layers are so many times as wide."""
    return build("strom2015-dnn", (17, 20), 200, width=WIDTH * times, hidden_layers=layers).layout.size


class Study:
    """Where runs go, and what they share."""

    def __init__(self, out: Path, settings: dict[str, Any]) -> None:
        self.out, self.settings = out, settings
        own = weights()
        self.cluster = Small("strom2015", 14_578_104, 1024, SAMPLES, own).write(out / "cluster.toml")
        self.stages = out / "stages.toml"
        stages = [f"[[stages]]\nat = {at:.1f}\nworkers = {nodes}\n" for at, nodes in ((0, FIRST), (1, NODES))]
        self.stages.write_text("".join(stages))

    def sgd(self) -> dict[str, Any]:
        """One node."""
        return converged(self.out / "sgd", 1, self.cluster, self.settings | _width() | {"algorithm.name": "sgd"})

    def forty(self, threshold: float = THRESHOLD, layers: int = 5, times: float = 1.0) -> dict[str, Any]:
        """Forty nodes."""
        own = {"algorithm.name": "sparse-delta", "algorithm.threshold": threshold} | _width(layers, times)
        folder = self.out / f"forty-{threshold:g}-{layers}-{times:.2f}"
        return converged(folder, NODES, self.cluster, self.settings | own, self.stages)

    def start(self, minibatch: int, more: dict[str, Any]) -> dict[str, Any]:
        """Forty nodes from the first minibatch on."""
        own = {"algorithm.name": "sparse-delta", "algorithm.threshold": THRESHOLD} | _width()
        return converged(self.out / f"start-{minibatch}", NODES, self.cluster, self.settings | own | more)

    def curve(self, name: str) -> list[tuple[float, float]]:
        """Epochs and errors."""
        return [
            (record["epoch"], record["test_clean_error"])
            for record in read_run(self.out / name, name).events("evaluate")
        ]


def _width(layers: int = 5, times: float = 1.0) -> dict[str, Any]:
    return {"model.width": WIDTH * times, "model.hidden_layers": layers}


def epochs(study: Study) -> None:
    """Figure 1: the error by epoch, and the virtual time."""
    ends = [study.sgd()["seconds"], study.forty()["seconds"]]
    curves = [study.curve(name) for name in ("sgd", f"forty-{THRESHOLD:g}-5-1.00")]
    rows = [[f"{pair[0][0]:.1f}", *(f"{error:.1%}" for _, error in pair)] for pair in zip(*curves, strict=True)]
    print(table(["epoch", "one node", "forty"], [*rows, ["seconds", *(f"{seconds:,.0f}" for seconds in ends)]]))


def thresholds(study: Study) -> None:
    """Table 3."""
    base, rows = study.sgd()["test_clean_error"], []
    for factor, paper in FACTORS.items():
        told = study.forty(THRESHOLD * factor)
        rows.append([f"{4 * factor:g}", f"{THRESHOLD * factor:g}", *_traffic(told), f"{told['seconds']:,.0f}"])
        rows[-1] += [f"{told['test_clean_error']:.1%}", f"{1 - told['test_clean_error'] / base:+.1%}", f"{paper:+.1f}%"]
    header = ["paper's τ", "τ here", "KB a minibatch", "compression", "seconds", "frame error", "reduction", "paper's"]
    print(table(header, rows))


def sizes(study: Study) -> None:
    """Table 4."""
    base, least, rows = study.sgd()["test_clean_error"], weights(), []
    for name, (millions, layers, times, paper) in SIZES.items():
        told = study.forty(THRESHOLD, layers, times)
        rows.append([name, f"{weights(layers, times) / least:.2f}", f"{millions / 14.6:.2f}", *_traffic(told)])
        rows[-1] += [paper, f"{told['test_clean_error']:.1%}", f"{1 - told['test_clean_error'] / base:+.1%}"]
    header = [
        "hidden layers",
        "weights",
        "paper's",
        "KB a minibatch",
        "compression",
        "paper's",
        "frame error",
        "reduction",
    ]
    print(table(header, rows))


def minibatches(study: Study) -> None:
    """Half an epoch on forty nodes after the pre-training, by minibatch, with one rate of samples: what a selection by
    trial (Seide et al. 2014, which §4 refers to) would see."""
    rows = []
    for size in (4, 8, 16, 32, 64):
        rate = study.settings["training.learning_rate"] * size / SAMPLES
        told = study.start(size, {"training.minibatch": size, "training.learning_rate": rate, "training.epochs": 0.5})
        rows.append([size, size * 1024 // SAMPLES, f"{rate:g}", f"{told['seconds']:.0f}"])
        rows[-1] += [*_traffic(told), f"{told['test_clean_error']:.1%}"]
    header = ["minibatch", "the paper's", "rate", "seconds", "KB a minibatch", "compression", "frame error"]
    print(table(header, rows))


def _traffic(told: dict[str, Any]) -> list[str]:
    return [f"{told['bytes_per_minibatch'] / 1000:.2f}", f"{told['compression_ratio']:,.0f}"]


TABLES: dict[str, Callable[[Study], None]] = {"epochs": epochs, "thresholds": thresholds, "sizes": sizes}
TABLES["minibatches"] = minibatches


def main() -> None:
    """One table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("corpus", type=Path, help="a folder of speech")
    parser.add_argument("table", choices=list(TABLES))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    words = parser.parse_args()
    settings = SHARED | {"data.path": str(words.corpus.resolve())} | overrides(words.set)
    TABLES[words.table](Study(words.out, settings))


if __name__ == "__main__":
    main()
