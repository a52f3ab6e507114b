"""Every recipe of jobs/configs trains: its loss falls over the first 60 updates.

Networks are a fraction as wide as the papers', and corpora have the papers' shapes but few samples, of ten classes that
are easily told apart. Rules, rates, minibatches and stages are the recipes'; ranks are simulated, in one process.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from mpitrain.cli.setup import TrainOptions
from mpitrain.cli.train import train_on
from mpitrain.data.shards import shard_name, write_shard
from mpitrain.protocols.hybrid import HybridStepper
from mpitrain.sampling.queue import Work
from mpitrain.signals import Stop
from mpitrain.simulation.job import Job
from mpitrain.training.gradients import Learner

RECIPES = Path(__file__).resolve().parent.parent / "jobs" / "configs"
UPDATES, SAMPLES, PRESENT = 60, 4096, 10


class Small(NamedTuple):
    """What makes a recipe a training of seconds: the shape of a sample before windows and crops, the number of classes,
    that of ranks, the samples of an update, and settings."""

    shape: tuple[int, ...]
    classes: int
    ranks: int
    samples: int
    settings: tuple[str, ...]


CIFAR = Small((32, 32, 3), 10, 3, 128, ("model.width=0.125",))
SMALL = {
    "allreduce": CIFAR._replace(ranks=2),
    "easgd2015": CIFAR,
    "eamsgd2015": CIFAR,
    "easgd-imagenet2015": Small((104, 104, 3), 1000, 5, 128, ("model.width=0.04", "data.crop=101")),
    "mdownpour2015": CIFAR,
    "mvadownpour2015": CIFAR,
    "chan2014": Small((23,), 200, 3, 3 * 256, ("model.width=0.06",)),
    "krizhevsky2014": Small((72, 72, 3), 1000, 2, 2 * 128, ("model.width=0.06", "data.crop=67")),
    "strom2015": Small((20,), 200, 10, 10 * 256, ("model.width=0.05", "pretraining.samples=2048")),
    "zhang2013": Small((42,), 200, 5, 3 * 256, ("model.width=0.04", "pretraining.samples=2048")),
}


def corpus(folder: Path, shape: tuple[int, ...], classes: int) -> None:
    """Samples of a pattern for each class, with noise; an utterance of frames has one class."""
    rng = np.random.default_rng(3)
    present = rng.choice(classes, PRESENT, replace=False).astype(np.int32)
    for part, count in (("train", SAMPLES), ("test", 256)):
        together = 32 if len(shape) == 1 else 1  # frames of an utterance
        which = rng.integers(PRESENT, size=count // together).repeat(together)
        coarse = np.random.default_rng(4).standard_normal((PRESENT, *(4 for _ in shape[:2]), *shape[2:]))
        for axis, side in enumerate(shape[:2], start=1):
            coarse = coarse.take(np.arange(side) * 4 // side, axis)
        shown = coarse[which] + 0.5 * rng.standard_normal((count, *shape))
        arrays: dict[str, Any] = {"targets": present[which]}
        if len(shape) == 1:
            arrays |= {"features": shown.astype(np.float32), "utterances": np.arange(0, count + 1, 32)}
        else:
            arrays |= {"images": np.clip(128 + 40 * shown, 0, 255).astype(np.uint8)}
        known = {"classes": classes, "source": "test"}
        if len(shape) > 1:
            known |= {"mean": np.full(shape[-1], 128.0), "standard_deviation": np.full(shape[-1], 45.0)}
        write_shard(folder / shard_name(part, 0, 1), "frames" if len(shape) == 1 else "images", arrays, known)


def test_every_recipe_is_tested() -> None:
    assert {path.stem for path in RECIPES.glob("*.toml")} == set(SMALL)


@pytest.mark.parametrize("name", SMALL)
def test_the_loss_falls_over_the_first_sixty_updates(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mean loss of the last sixth of them is below that of the first, and at most 1 % above that of a network that
    gives all classes the same probability; none is far above the first loss."""
    small = SMALL[name]
    corpus(tmp_path, small.shape, small.classes)
    losses, gradient, step = list[float](), Learner.scaled_gradient, HybridStepper.step

    def compute(learner: Learner, *arguments: Any, **more: Any) -> float:
        loss = gradient(learner, *arguments, **more)
        if "preset" in learner.network.name:  # not a network of pre-training
            losses.append(loss)
        return loss

    def together(stepper: HybridStepper, work: Work) -> float:
        losses.append(step(stepper, work))
        return losses[-1]

    monkeypatch.setattr(Learner, "scaled_gradient", compute)
    monkeypatch.setattr(HybridStepper, "step", together)
    length = f"training.epochs={UPDATES * small.samples / SAMPLES}"
    quiet = ("run.progress=none", "run.evaluate_every=0", "run.checkpoint_every=0", "run.threads=1")
    overrides = (f"data.path={tmp_path}", length, *quiet, *small.settings)
    options = TrainOptions(config=RECIPES / f"{name}.toml", overrides=overrides, out=tmp_path / "run")
    with threadpool_limits(1):
        ended = Job[int](small.ranks).run(lambda transport: train_on(transport, options, Stop()))
    assert set(ended) == {0}
    sixth = len(losses) // 6
    first, last = np.mean(losses[:sixth]), np.mean(losses[-sixth:])
    assert last < first and last < 1.01 * np.log(small.classes) and max(losses) < 1.5 * losses[0], losses
