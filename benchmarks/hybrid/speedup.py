"""Table 1's speed-ups of Krizhevsky 2014 on the simulated machine of the paper, for each scheme.

    OPENBLAS_NUM_THREADS=1 python benchmarks/hybrid/speedup.py OUT [--ranks 1 2 4 8] [--schemes a b c] [--iterations 2]

The recipe with its own network, geometry and minibatches, so that every message has the paper's size; the gradients are
computed (some 5 s for a rank and iteration), the clock is that of the cluster file. The images are noise. Runs that are
in OUT are not repeated.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

from mpitrain.api.clusters import find
from mpitrain.data.writer import ShardWriter

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from launch import converged, table

RECIPE = Path(__file__).resolve().parents[2] / "jobs" / "configs" / "krizhevsky2014.toml"
PAPER = {2: "1.93", 4: "3.66", 8: "6.16"}  # with 128 examples at a time in the fully connected layers, as the recipe
SIDE, CLASSES = 224, 1000


def images(folder: Path, count: int) -> Path:
    """A corpus of so many images for the training and two for the test."""
    rng, mean = np.random.default_rng(1), np.full(3, 127.5)
    folder.mkdir(parents=True, exist_ok=True)
    for part, samples in (("train", count), ("test", 2)):
        known = {"classes": CLASSES, "source": "noise", "mean": mean, "standard_deviation": np.full(3, 74.0)}
        writer = ShardWriter(folder, part, "images", known)
        for start in range(0, samples, 64):
            few = min(64, samples - start)
            shown = rng.integers(0, 256, (few, SIDE, SIDE, 3), dtype=np.uint8)
            writer.add(shown, rng.integers(CLASSES, size=few).astype(np.int32))
        writer.finish()
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--schemes", nargs="+", default=["a", "b", "c"])
    parser.add_argument("--iterations", type=int, default=2)
    parser.add_argument("--minibatch", type=int, default=128)
    parser.add_argument("--width", type=float, default=1.0)
    options = parser.parse_args()
    most = max(options.ranks) * options.minibatch
    corpus = images(options.out / "images", most)
    shared: dict[str, Any] = {"data.path": str(corpus), "model.width": options.width, "stages": []}
    shared |= {"training.minibatch": options.minibatch, "run.evaluate_every": 0, "run.checkpoint_every": 0}
    shared |= {"run.progress": "none", "run.threads": 1}

    def speed(ranks: int, scheme: str) -> float:
        epochs = options.iterations * ranks * options.minibatch / most
        keys = shared | {"training.epochs": epochs, "algorithm.scheme": scheme}
        told = converged(options.out / f"{scheme}-{ranks}", ranks, find("krizhevsky2014"), keys, RECIPE)
        return float(told["samples"] / told["seconds"])

    alone = speed(1, options.schemes[0])
    rows = [
        [ranks, *(f"{speed(ranks, scheme) / alone:.2f}" for scheme in options.schemes), PAPER.get(ranks, "")]
        for ranks in options.ranks
        if ranks > 1
    ]
    print(table(["ranks", *(f"scheme {scheme}" for scheme in options.schemes), "paper"], rows))


if __name__ == "__main__":
    main()
