"""What do slow nodes cost each method? Eight simulated workers, one at half and one at a quarter of the speed.

python benchmarks/unequal/unequal.py OUT [--equal] [--target E] [--rates R ...] [--seeds N] [--only NAME ...]

In earnest, with three workers: earnest.py.

A perceptron (benchmarks/digits.toml) on the embedded digits; one rank a node, 10 Gbit/s; where a method has a server it
gets a ninth node. Per method: samples a second in units of the sum of all speeds, and the virtual seconds to a test
error, at the best of the rates (on the first seed), as the median over seeds. Evaluations take no time.
"""

import argparse
import json
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from launch import PERCEPTRON, simulate, table

WORKERS, MINIBATCH = 8, 32
SLOW = (2.0, 4.0)  # times as long for a gradient take the last nodes
SECONDS = 1e-3  # of a minibatch's gradient on a node that is not slow
BLOCKS: dict[str, Any] = {"algorithm.name": "block-momentum", "algorithm.preset": "bmuf", "algorithm.tau": 10}
FREE = BLOCKS | {"algorithm.order": "free"}
METHODS: dict[str, dict[str, Any]] = {
    "allreduce": {"algorithm.name": "allreduce", "algorithm.momentum": 0.9},
    "block-momentum (bmuf)": BLOCKS,
    "block-momentum (bmuf), free": FREE,
    "the same, weights by samples": FREE | {"algorithm.weights": "samples"},
    "easgd": {"algorithm.name": "easgd", "algorithm.tau": 10},
    "asgd": {"algorithm.name": "asgd"},
    "asgd with dana": {"algorithm.name": "asgd", "algorithm.staleness": "dana", "algorithm.momentum": 0.9},
}
SERVED = ("easgd", "asgd", "asgd with dana", "block-momentum (bmuf), free", "the same, weights by samples")


def cluster_file(folder: Path, ranks: int, slow: Sequence[float], seconds: float = SECONDS) -> Path:
    """Describe a cluster of `ranks` nodes, of which the last take `slow` times `seconds` for a minibatch's gradient."""
    nodes = range(ranks - len(slow), ranks)
    tables = "".join(
        f"\n[[slow]]\nnode = {node}\nfactor = {factor}\n" for node, factor in zip(nodes, slow, strict=True)
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{ranks}{''.join(f'-{factor:g}' for factor in slow)}.toml"
    path.write_text(
        f"nodes = {ranks}\nranks_per_node = 1\ncores_per_node = 1\n\n[gradient]\nseconds = 0.0\n"
        f"seconds_per_sample = {seconds / MINIBATCH}\n\n[within_node]\nlatency = 1e-6\nbandwidth = 5e9\n\n"
        f"[between_nodes]\nlatency = 2e-5\nbandwidth = 1.25e9\n{tables}"
    )
    return path


def reached(run: Path, target: float) -> float:
    """Virtual seconds to the first evaluation at or below a test error; infinity if there is none."""
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    times = [each["seconds"] for each in records if each["event"] == "evaluate" and each["test_error"] <= target]
    return min(times, default=math.inf)


def trained(words: argparse.Namespace, name: str, rate: float, seed: int) -> tuple[float, float, float]:
    """Samples a second in units of the sum of all speeds, seconds to the target, the last test loss."""
    ranks, speeds = (
        WORKERS + (name in SERVED),
        WORKERS if words.equal else WORKERS - len(SLOW) + sum(1 / f for f in SLOW),
    )
    cluster, method = cluster_file(words.out, ranks, () if words.equal else SLOW), METHODS[name]
    own = (1.0 - float(method.get("algorithm.momentum", 0.0))) * rate
    keys = {"training.learning_rate": round(own, 6), "training.seed": seed, "model.seed": seed}
    common = {"training.minibatch": MINIBATCH, "training.epochs": words.epochs, "run.evaluate_every": 0.5}
    quiet = {"run.progress": "none", "run.checkpoint_every": 0}
    run = words.out / f"{name}{'-equal' * words.equal}-r{rate:g}-s{seed}".replace(" ", "-")
    told = simulate(run, ranks, cluster, method | keys | common | quiet, PERCEPTRON)
    if told is None:
        return 0.0, math.inf, math.inf
    return told["samples_per_second"] * SECONDS / MINIBATCH / speeds, reached(run, words.target), told["test_loss"]


def main() -> None:
    """One table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--equal", action="store_true", help="no node is slow")
    parser.add_argument("--target", type=float, default=0.06)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.05, 0.1, 0.2, 0.4])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=float, default=30)
    parser.add_argument("--only", nargs="+", choices=METHODS, default=list(METHODS), metavar="NAME")
    words = parser.parse_args()
    words.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in words.only:
        of_rate = {rate: trained(words, name, rate, 1)[1:] for rate in words.rates}
        best = min(of_rate, key=lambda rate: of_rate[rate])
        found = [trained(words, name, best, seed) for seed in range(1, words.seeds + 1)]
        share, seconds, loss = (statistics.median(column) for column in zip(*found, strict=True))
        times = ", ".join(f"{each[1]:.2f}" for each in found)
        rows.append([name, f"{best:g}", f"{share:.1%}", f"{seconds:.2f} ({times})", f"{loss:.3f}"])
    print(table(["method", "best r", "of all speeds", f"s to {words.target:.0%}", "test loss at the end"], rows))


if __name__ == "__main__":
    main()
