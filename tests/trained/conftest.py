"""Run folders made without a training, and the program as one process."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from mpitrain import checkpoint
from mpitrain import config as configuration
from mpitrain.data import origin
from mpitrain.data.digits import data_path
from mpitrain.data.shards import write_shard
from mpitrain.files import write_whole
from mpitrain.sampling.queue import Queue
from mpitrain.training import inputs
from mpitrain.training.context import fresh
from mpitrain.training.parts import form_of


def make_run(run: Path, *settings: str, samples: int = 100, seed: int = 1, factor: float = 1.0) -> np.ndarray:
    """A run folder of a network that stands where it began, or as `seed` says, times `factor`; its θ."""
    config = configuration.load(None, list(settings))
    told = origin.of_part(data_path(config))
    network = inputs.network_of(config, form_of(config, told), told.classes)
    theta = network.initial(seed, np.dtype(config.training.dtype))
    theta *= factor
    state = fresh(config.algorithm, theta, Queue(sum(told.class_counts), 10**6))
    state.trained = samples
    run.mkdir(parents=True, exist_ok=True)
    draft = checkpoint.Draft(run / "checkpoints", samples)
    draft.begin(0)
    draft.write("state.h5", checkpoint.FileContent(state.vectors(), state.numbers()), network.layout)
    documents = {"config.toml": checkpoint.sealed(configuration.to_toml(config)), **network.documents}
    draft.commit(3, documents)
    for name, text in documents.items():
        write_whole(run / name, text)
    (run / origin.NAME).write_text(origin.text(told))
    return theta


def make_frames(folder: Path, lengths: tuple[int, ...] = (5, 1, 30), dims: int = 6, classes: int = 4) -> None:
    """Shards of frames whose mean and deviation matter: two of the training part, one to test, with keys."""
    rng = np.random.default_rng(3)
    for part, names in (("train", (["a"], ["b", "c"])), ("test", (["zoë-1", "ann-2", "bob-3"],))):
        for number, keys in enumerate(names):
            own = lengths[: len(keys)]
            arrays = {
                "features": rng.normal(5.0, 3.0, (sum(own), dims)).astype(np.float32),
                "targets": rng.integers(0, classes, sum(own)).astype(np.int32),
                "utterances": np.cumsum([0, *own]),
                "keys": np.char.encode(keys, "utf-8"),
            }
            attributes = {"classes": classes, "mean": np.linspace(4, 6, dims), "standard_deviation": np.full(dims, 3.0)}
            write_shard(folder / f"{part}-{number:05d}-of-{len(names):05d}.h5", "frames", arrays, attributes)


def make_images(folder: Path, shape: tuple[int, int, int], samples: int = 5, classes: int = 4) -> None:
    """Shards of random images."""
    rng = np.random.default_rng(4)
    for part in ("train", "test"):
        arrays = {
            "images": rng.integers(0, 256, (samples, *shape)).astype(np.uint8),
            "targets": rng.integers(0, classes, samples).astype(np.int32),
        }
        deviation = np.linspace(60, 70, shape[2])
        attributes = {"classes": classes, "mean": np.linspace(110, 130, shape[2]), "standard_deviation": deviation}
        write_shard(folder / f"{part}-00000-of-00001.h5", "images", arrays, attributes)


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    status: int
    out: str
    err: str


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Run `mpitrain ARGUMENTS` on one rank in a temporary folder: in this process, since starting takes the longest."""
    from mpitrain.__main__ import main

    def run(*arguments: str) -> Ended:
        monkeypatch.chdir(tmp_path)
        capsys.readouterr()
        status = main(list(arguments))
        return Ended(status, *capsys.readouterr())

    return run
