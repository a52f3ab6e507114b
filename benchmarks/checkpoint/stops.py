"""How long a checkpoint stops the training of each rank, against its minibatch.

    mpirun -n 3 python benchmarks/checkpoint/stops.py ALGORITHM [--width 0.25] [--minibatch 256] [--epochs 4]
        [--frames 60000] [--every 6]

Random frames; `zhang2013-dnn` at a part of its width; a checkpoint is due every six seconds. On each rank the time
between the end of one minibatch's gradient and the beginning of the next one's is taken. Printed are the longest such
gap within two seconds from the beginning of a checkpoint, and the longest within two seconds half-way between two, of
both the median over all checkpoints but the first, for which memory is allocated, and the one at the end.
"""

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from functools import wraps
from pathlib import Path

import numpy as np

from mpitrain.api.options import TrainOptions
from mpitrain.api.train import train_on
from mpitrain.data.shards import write_shard
from mpitrain.monitoring.monitor import MasterMonitor
from mpitrain.mpi import Transport
from mpitrain.signals import Stop
from mpitrain.training.gradients import Learner

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from launch import require_ranks

INPUTS, CLASSES, WINDOW = 340, 1998, 2.0


def main() -> int:
    """Train in a temporary folder."""
    require_ranks(2, or_more=True)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithm")
    parser.add_argument("--width", default="0.25")
    parser.add_argument("--minibatch", default="256")
    parser.add_argument("--epochs", default="4")
    parser.add_argument("--frames", type=int, default=60_000)
    parser.add_argument("--every", type=float, default=6.0, metavar="SECONDS")
    options = parser.parse_args()
    transport = Transport()
    with tempfile.TemporaryDirectory() as own:  # rank 0's is used
        folder = Path(transport.broadcast(own.encode(), "the folder").decode())
        status = measure(transport, folder, options)
        transport.leave()
    return status


def measure(transport: Transport, folder: Path, options: argparse.Namespace) -> int:
    """Train, and print a line a rank; 1 if that says nothing."""
    if transport.rank == 0:
        write(folder, options.frames)
    transport.barrier("the data")
    settings = {
        "algorithm.name": options.algorithm,
        "data.path": folder,
        "model.preset": "zhang2013-dnn",
        "model.width": options.width,
        "training.minibatch": options.minibatch,
        "training.learning_rate": 0.001,
        "training.epochs": options.epochs,
        "run.checkpoint_every": options.every / 60,
        "run.evaluate_every": 0,
        "run.progress": "none",
    }
    gradients, checkpoints = timed(Learner, "gradient"), timed(MasterMonitor, "checkpoint")
    overrides = tuple(f"{key}={value}" for key, value in settings.items())
    if status := train_on(Transport(), TrainOptions(overrides=overrides, out=folder / "run"), Stop()):
        return status
    began = [begin for begin, _ in checkpoints]  # of peers twice: it is due, they have met
    began = [t for before, t in itertools.pairwise([0.0, *began]) if t - before > options.every / 6]
    begun = json.loads(transport.broadcast(json.dumps(began).encode(), "the times"))
    if len(begun) < 4:
        if transport.rank == 0:
            print(f"{len(begun)} checkpoints in all, too few to tell: --epochs takes more", file=sys.stderr)
        return 1
    for rank, line in enumerate(transport.gather_texts(told(gradients, begun[1:-1]), "the times")):
        if transport.rank == 0 and line:
            print(f"{options.algorithm:12} rank {rank}: {line}", flush=True)
    return 0


def write(folder: Path, training: int) -> None:
    """A training part and a small test part."""
    rng = np.random.default_rng(1)
    for part, frames in (("train", training), ("test", 100)):
        arrays = {
            "features": rng.standard_normal((frames, INPUTS), np.float32),
            "targets": rng.integers(0, CLASSES, frames).astype(np.int32),
            "utterances": np.array([0, frames]),
        }
        attributes = {"classes": CLASSES, "mean": np.zeros(INPUTS), "standard_deviation": np.ones(INPUTS)}
        write_shard(folder / f"{part}-00000-of-00001.h5", "frames", arrays, attributes)


def timed(kind: type, name: str) -> list[tuple[float, float]]:
    """Have a method note its calls' beginnings and ends; all processes of a node read one clock."""
    plain, calls = getattr(kind, name), list[tuple[float, float]]()

    @wraps(plain)
    def noting(*arguments, **more):
        began = time.monotonic()
        try:
            return plain(*arguments, **more)
        finally:
            calls.append((began, time.monotonic()))

    setattr(kind, name, noting)
    return calls


def told(gradients: list[tuple[float, float]], begun: list[float]) -> str:
    """A rank's figures."""
    if not gradients:
        return ""
    minibatch = statistics.median(end - begin for begin, end in gradients)
    gaps = [(end, begin) for (_, end), (begin, _) in itertools.pairwise(gradients)]

    def longest(after: float) -> float:
        return max((b - a for a, b in gaps if b > after and a < after + WINDOW), default=0.0)

    at, between = [longest(t) for t in begun], [longest((s + t) / 2) for s, t in itertools.pairwise(begun)]
    return (
        f"minibatch {1e3 * minibatch:6.1f} ms   gap at a checkpoint {1e3 * statistics.median(at):6.1f} ms "
        f"(longest {1e3 * max(at):6.1f}), between {1e3 * statistics.median(between):6.1f} ms "
        f"(longest {1e3 * max(between):6.1f})   {len(at)} checkpoints"
    )


if __name__ == "__main__":
    sys.exit(main())
