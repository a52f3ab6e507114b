"""The recipe of `strom2015` after its pre-training: the loss over 200 minibatches of each of 1, 2, 5 and 10 peers.

    python -m mpitrain prepare speech BN --language bn --hours 0.3 --classes 200 --bins 20
    OPENBLAS_NUM_THREADS=1 python benchmarks/papers/sparse/start.py OUT BN [--peers 1 2 5 10] [--width 1]
        [--set KEY=VALUE ...]

The recipe's first stage, the first sixth of an epoch of 368 million samples, on the simulated cluster of the paper. The
loss is of a fixed subset of the training part. Runs that are in OUT are not repeated.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from mpitrain.data.corpus import Corpus
from mpitrain.report.runs import read_run

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from launch import converged, table, unscaled

RECIPE = Path(__file__).resolve().parents[3] / "jobs" / "configs" / "strom2015.toml"
EVALUATIONS, SAMPLES = 10, 256  # after the first; of a minibatch
SHARED: dict[str, Any] = {
    "stages": [],
    "run.checkpoint_every": 0,
    "run.progress": "none",
    "run.threads": 1,
    "run.train_subset": 2000,
}


def losses(out: Path, peers: int, minibatches: int, frames: int, settings: dict[str, Any]) -> list[float]:
    """After the pre-training and one minibatch of one peer, and after each tenth of the minibatches of every peer."""
    cluster, epoch = unscaled("strom2015", out), SAMPLES / frames
    length = minibatches * peers * epoch
    first = {"training.epochs": epoch}
    long = {"training.epochs": length, "run.evaluate_every": length / EVALUATIONS}
    converged(out / "pre-trained", 1, cluster, settings | first, RECIPE)
    converged(out / f"peers-{peers}", peers, cluster, settings | long, RECIPE)
    both = (read_run(out / name, name).events("evaluate") for name in ("pre-trained", f"peers-{peers}"))
    return [float(record["train_subset_loss"]) for records in both for record in records]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("corpus", type=Path, help="a folder of speech")
    parser.add_argument("--peers", type=int, nargs="+", default=[1, 2, 5, 10])
    parser.add_argument("--minibatches", type=int, default=200)
    parser.add_argument("--width", type=float, default=1.0)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    given = {key: json.loads(value) for key, _, value in (word.partition("=") for word in options.set)}
    settings = SHARED | {"data.path": str(options.corpus.resolve()), "model.width": options.width} | given
    frames = Corpus(options.corpus, "train").samples
    curves = {peers: losses(options.out, peers, options.minibatches, frames, settings) for peers in options.peers}
    rows = [
        [peers, *(f"{loss:.3f}" for loss in curve), f"{max(curve) / curve[0] - 1:+.1%}"]
        for peers, curve in curves.items()
    ]
    places = [number * options.minibatches // EVALUATIONS for number in range(len(rows[0]) - 2)]
    print(table(["peers", *places, "largest, against the first"], rows))


if __name__ == "__main__":
    main()
