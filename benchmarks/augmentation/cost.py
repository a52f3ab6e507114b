"""What augmentation costs: gathering a minibatch of 128 CIFAR images, against a training step on it.

    OPENBLAS_NUM_THREADS=1 python benchmarks/augmentation/cost.py [--repeats N]

The corpus is 50,000 random images of 32 x 32 x 3 in memory; all cases take turns in one process.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from mpitrain.data.augmentation import Augmentation
from mpitrain.data.corpus import Corpus
from mpitrain.data.shards import write_shard
from mpitrain.models.model import Draws
from mpitrain.models.network import build
from mpitrain.sampling.batch import Batch

COUNT, MINIBATCH = 50_000, 128
CASES = {
    "whole images, 32 x 32": Augmentation(),
    "centre crop, 28 x 28": Augmentation(crop=28),
    "random crop and flip": Augmentation(crop=28, flip=True),
    "random crop, flip and colour shift": Augmentation(crop=28, flip=True, colour_shift=0.1),
}


def write_images(folder: Path) -> None:
    """A training part of random images."""
    rng = np.random.default_rng(0)
    arrays = {
        "images": rng.integers(0, 256, (COUNT, 32, 32, 3), np.uint8),
        "targets": rng.integers(0, 10, COUNT).astype(np.int32),
    }
    attributes = {"classes": 10, "mean": 127.5, "standard_deviation": 73.9, "covariance": 5461.0 * np.eye(3)}
    write_shard(folder / "train-00000-of-00001.h5", "images", arrays, attributes)


def main() -> None:
    """Print medians in milliseconds, and as a share of the step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=21)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_images(Path(folder))
        corpora = {name: Corpus(Path(folder), "train", augmentation=case) for name, case in CASES.items()}
    batches = {name: batch_of(corpus) for name, corpus in corpora.items()}
    network = build("easgd-cifar", (28, 28, 3), 10)
    theta, rng = network.initial(0), np.random.default_rng(0)
    gradient = np.empty_like(theta)
    times: dict[str, list[float]] = {name: [] for name in (*CASES, "step")}
    for turn in range(options.repeats + 2):
        indices = rng.integers(0, COUNT, MINIBATCH)
        for name, corpus in corpora.items():
            place = None if name.startswith("centre") else (0, turn * MINIBATCH)
            times[name].append(seconds(lambda: corpus.gather(indices, batches[name], place)))  # noqa: B023
        batch = batches["random crop and flip"]
        times["step"].append(seconds(lambda: network.loss_and_gradient(theta, gradient, batch, Draws(rng))))  # noqa: B023
    step = statistics.median(times.pop("step")[2:])
    print(f"{'gradient of easgd-cifar, minibatch 128':40} {step * 1e3:8.3f} ms")
    for name, values in times.items():
        median = statistics.median(values[2:])
        print(f"{name:40} {median * 1e3:8.3f} ms  {median / step:6.2%}")


def batch_of(corpus: Corpus) -> Batch:
    """Room for a minibatch."""
    return Batch(np.empty((MINIBATCH, *corpus.shape), np.float32), np.empty(MINIBATCH, np.int32))


def seconds(action: Callable[[], object]) -> float:
    """How long it takes."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
