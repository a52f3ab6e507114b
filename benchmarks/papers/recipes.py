"""Does every recipe of jobs/configs learn? Its training loss against that of the best constant outputs.

    OPENBLAS_NUM_THREADS=1 python benchmarks/papers/recipes.py OUT [--only NAME ...] [--factors 1 10] [--short]

Each runs at its own rule, rates, minibatches, stages, output and geometry, with the ranks of its paper on the simulated
cluster of its paper. Networks are narrower, and the corpora synthetic: ten classes, or twenty of frames, all of them
equally often, whose samples are a coarse pattern and noise. The best constant outputs are the classes' frequencies; a
recipe learns if its loss at the end is below BAR of theirs, where biases alone do not come. `--factors` multiply the
rates. `--short` has fewer ranks or narrower networks where a run takes long. Runs that are in OUT are not repeated.
"""

import argparse
import sys
import tomllib
from collections.abc import Mapping
from math import log
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from mpitrain.data.shards import shard_name, write_shard

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from launch import simulate, table, unscaled

RECIPES = Path(__file__).resolve().parents[2] / "jobs" / "configs"
UTTERANCE = 32  # frames of one
#: Of the loss of the best constant outputs, what a recipe must be below: a tenth less tells classes apart.
BAR = 0.9
UPDATES = 60  # at least so many of each, a worker's own between two exchanges included


class Case(NamedTuple):
    """How a recipe is made small: the shape of a sample before windows and crops, the cluster, its ranks, minibatches
    of each worker, samples of one, the width, what more is set. `short`: what a run of seconds has instead."""

    shape: tuple[int, ...]
    cluster: str
    ranks: int
    minibatches: int
    minibatch: int
    width: float
    settings: Mapping[str, Any] = MappingProxyType({})
    short: Mapping[str, Any] = MappingProxyType({})
    served: bool = True  # whether rank 0 computes nothing

    @property
    def classes(self) -> int:
        return 20 if len(self.shape) == 1 else 10

    @property
    def together(self) -> int:
        """Samples that have one class by turns: the frames of an utterance of each, or an image of each."""
        return self.classes * (UTTERANCE if len(self.shape) == 1 else 1)


CIFAR = Case((32, 32, 3), "easgd2015", 5, 60, 128, 0.25)
FEW, PASSES = {"pretraining.samples": 2048}, "pretraining.epochs"
CASES = {
    "allreduce": CIFAR._replace(ranks=4, minibatches=240, minibatch=32, served=False),
    "easgd2015": CIFAR._replace(minibatches=200, short={"ranks": 3}),
    "eamsgd2015": CIFAR._replace(minibatches=200, short={"ranks": 3}),
    "mdownpour2015": CIFAR._replace(minibatches=600, short={"minibatches": 300}),
    "mvadownpour2015": CIFAR._replace(minibatches=120),
    "easgd-imagenet2015": Case((232, 232, 3), "easgd2015", 5, 150, 128, 0.03, short={"ranks": 3, "minibatches": 80}),
    "chan2014": Case((23,), "chan2014", 6, 200, 256, 0.06, short={"ranks": 4}),
    "krizhevsky2014": Case((224, 224, 3), "krizhevsky2014", 8, 60, 128, 0.03, short={"ranks": 1}, served=False),
    "strom2015": Case((20,), "strom2015", 10, 120, 256, 1.0, FEW, short={"width": 0.25}, served=False),
    # As many samples of pre-training as in the recipe: without it, five layers of sigmoids learn nothing in an hour.
    "zhang2013": Case((42,), "zhang2013", 5, 60, 256, 0.04, {PASSES: 244.0}, short={"settings": {PASSES: 60.0}}),
}


def corpus(folder: Path, case: Case, count: int, classes: int = 0) -> None:
    """So many samples for the training and a sixteenth for the test; as many of each class. `classes`: what the corpus
    says that it has, where that is more."""
    rng, shape, pixels = np.random.default_rng(3), case.shape, len(case.shape) > 1
    coarse = rng.standard_normal((case.classes, *(4 for _ in shape[:2]), *shape[2:])).astype(np.float32)
    for axis, side in enumerate(shape[:2], start=1):
        coarse = coarse.take(np.arange(side) * 4 // side, axis)
    known: dict[str, Any] = {"classes": classes or case.classes, "source": "patterns"}
    if pixels:
        known |= {"mean": np.full(shape[-1], 128.0), "standard_deviation": np.full(shape[-1], 74.0)}
    folder.mkdir(parents=True, exist_ok=True)
    for part, samples in (("train", count), ("test", max(count // 16, case.together))):
        turns = samples // case.together * case.classes
        targets = rng.permutation(np.arange(turns) % case.classes).repeat(case.together // case.classes)
        arrays: dict[str, Any] = {"targets": targets.astype(np.int32)}
        if pixels:
            arrays["images"] = np.empty((len(targets), *shape), np.uint8)
            for image, target in zip(arrays["images"], targets, strict=True):
                image[...] = np.clip(128 + 70 * coarse[target] + 20 * rng.standard_normal(shape), 0, 255)
        else:
            noise = rng.standard_normal((len(targets), *shape)).astype(np.float32)
            arrays |= {"features": coarse[targets] + 0.5 * noise}
            arrays |= {"utterances": np.arange(0, len(targets) + 1, UTTERANCE)}
        write_shard(folder / shard_name(part, 0, 1), "images" if pixels else "frames", arrays, known)


def constant(name: str) -> float:
    """The loss of the best constant outputs."""
    return best_constants(CASES[name].classes, "logistic" if name == "krizhevsky2014" else "softmax")


def best_constants(classes: int, output: str) -> float:
    """The loss of the best constant outputs, of classes that are equally often."""
    if output == "logistic":  # one for each class
        return log(classes) - (classes - 1) * log(1 - 1 / classes)
    return log(classes)


def said(name: str) -> dict[str, Any]:
    """What a recipe says."""
    return {"training": {}, **tomllib.loads((RECIPES / f"{name}.toml").read_text())}


def period(name: str) -> int:
    """Minibatches of a worker from one exchange to the next."""
    return int(said(name)["algorithm"].get("tau", 1))


def trained(name: str, out: Path, factor: float = 1.0, short: bool = False) -> dict[str, Any] | None:
    """The summary of a recipe's run at `factor` times its rate; None if it diverged."""
    case = CASES[name]._replace(**CASES[name].short) if short else CASES[name]
    ranks = case.ranks
    wanted = 2048 if case.shape[0] > 200 else 16_384
    samples = wanted // case.together * case.together
    where = out / "corpora" / "x".join(map(str, case.shape))
    if not where.exists():
        corpus(where, case, wanted)
    settings = dict(case.settings) | {
        "data.path": str(where),
        "model.width": case.width,
        "training.epochs": case.minibatches * case.minibatch * (ranks - case.served) / samples,
        "training.learning_rate": factor * said(name)["training"].get("learning_rate", 0.008),
        "run.evaluate_every": 0,
        "run.checkpoint_every": 0,
        "run.train_subset": 0,
        "run.progress": "none",
        "run.threads": 1,
    }
    return simulate(out / f"{name}-{factor:g}", ranks, unscaled(case.cluster, out), settings, RECIPES / f"{name}.toml")


def learns(name: str, told: dict[str, Any] | None) -> bool:
    """Whether a run's loss at the end is clearly below that of the best constant outputs."""
    return told is not None and told["train_loss"] < BAR * constant(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--factors", type=float, nargs="+", default=[1, 10])
    parser.add_argument("--short", action="store_true")
    options = parser.parse_args()
    rows = []
    for name in options.only:
        rows.append([f"`{name}`", CASES[name].width])
        for factor in options.factors:
            told = trained(name, options.out, factor, options.short)
            if told is None:
                rows[-1] += ["diverged"]
            else:
                rows[-1] += [f"{told['updates']}: {told['train_loss']:.3f}, {told['test_error']:.0%}"]
        rows[-1].append(f"{constant(name):.3f}")
    header = [f"× {factor:g}: updates, loss, error" for factor in options.factors]
    print(table(["recipe", "width", *header, "best constants"], rows))


if __name__ == "__main__":
    main()
