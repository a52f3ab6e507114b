"""What does a slow node cost in earnest? Three workers, one of which takes twice as long for a gradient.

python benchmarks/unequal/earnest.py OUT [--target E] [--rates R ...] [--seeds N] [--epochs N] [--only NAME ...]

A gradient's time is slept (slowed.py), so that a few cores stand for as many nodes. Per method, at the rate that is the
soonest in a simulation of the same nodes: samples a second in units of the sum of all speeds, and seconds to a test
error, both in earnest and simulated, as medians over seeds. Evaluations take no time.
"""

import argparse
import math
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from launch import attempt, simulate, table
from unequal import METHODS, MINIBATCH, SERVED, cluster_file, reached

WORKERS, SLOW = 3, 2.0
SECONDS = 8e-3  # of a minibatch's gradient on a node that is not slow
SPEEDS = WORKERS - 1 + 1 / SLOW
NAMES = ("block-momentum (bmuf)", "block-momentum (bmuf), free", "easgd", "asgd with dana")


def trained(words: argparse.Namespace, name: str, rate: float, seed: int, simulated: bool) -> tuple[float, float]:
    """Samples a second in units of the sum of all speeds, and seconds to the target."""
    ranks, method = WORKERS + (name in SERVED), METHODS[name]
    own = (1.0 - float(method.get("algorithm.momentum", 0.0))) * rate
    module = f"{Path(__file__).resolve().with_name('slowed.py')}:build"
    settings: dict[str, Any] = {
        **method,
        "model.import": module,
        "model.options.seconds": SECONDS,
        "model.options.slow": ranks - 1,
        "training.learning_rate": round(own, 6),
        "training.seed": seed,
        "model.seed": seed,
        "training.minibatch": MINIBATCH,
        "training.epochs": words.epochs,
        "run.evaluate_every": 0.5,
        "run.evaluate_late": True,
        "run.checkpoint_every": 0,
        "run.progress": "none",
    }
    run = words.out / f"{name}-r{rate:g}-s{seed}{'-simulated' * simulated}".replace(" ", "-")
    told = (
        simulate(run, ranks, cluster_file(words.out, ranks, [SLOW], SECONDS), settings)
        if simulated
        else attempt(run, ranks, settings)
    )
    if told is None:
        return 0.0, math.inf
    return told["samples_per_second"] * SECONDS / MINIBATCH / SPEEDS, reached(run, words.target)


def main() -> None:
    """One table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--target", type=float, default=0.05)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.1, 0.2, 0.4, 0.8])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=float, default=40)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, metavar="NAME")
    words = parser.parse_args()
    rows = []
    for name in words.only:
        best = min(words.rates, key=lambda rate: trained(words, name, rate, 1, True)[1])
        row = [name, f"{best:g}"]
        for simulated in (False, True):
            found = [trained(words, name, best, seed, simulated) for seed in range(1, words.seeds + 1)]
            share, seconds = (statistics.median(column) for column in zip(*found, strict=True))
            row += [f"{share:.1%}", f"{seconds:.2f} ({', '.join(f'{each:.2f}' for _, each in found)})"]
        rows.append(row)
    to = f"s to {words.target:.0%}"
    print(table(["method", "rate", "of all speeds", to, "simulated: of all speeds", to], rows))


if __name__ == "__main__":
    main()
