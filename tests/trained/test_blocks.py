"""`evaluate --blocks`: sums over blocks of neighbours, that together are the evaluation."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpitrain.sampling.batch import Batch
from mpitrain.trained.model import load

from .conftest import make_frames, make_run

SAMPLES = 2500


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    make_frames(tmp_path / "data", lengths=(7, 1, SAMPLES - 8))
    make_run(tmp_path / "run", "model.preset=strom2015-dnn", "model.width=0.01", "data.path=data")
    return tmp_path


@pytest.mark.parametrize("ranks", [1, 3])
def test_blocks_are_of_neighbours(
    alone: Callable[..., Any], launch: Callable[..., Any], folder: Path, ranks: int
) -> None:
    """1000 of them, of two or three samples each: the wrong ones are those of the network's outputs, in order."""
    command = ("evaluate", "run", "--blocks", "blocks.json")
    ended = alone(*command) if ranks == 1 else launch(ranks, *command)
    assert ended.status == 0, ended.err
    found = json.loads((folder / "blocks.json").read_text())
    assert set(found) == {"test"} and set(found["test"]) == {"samples", "loss", "error"}
    sums = {name: np.array(values) for name, values in found["test"].items()}
    assert len(sums["samples"]) == 1000 and set(sums["samples"]) == {2, 3} and sums["samples"].sum() == SAMPLES
    model = load(folder / "run")
    corpus = model.open(folder / "data", "test")
    batch = Batch(np.empty((SAMPLES, *corpus.shape), np.float32), np.empty(SAMPLES, np.int32))
    corpus.gather(np.arange(SAMPLES), batch)
    z = model.network.outputs(model.parameters, batch.inputs).astype(np.float64)
    starts = np.cumsum([0, *sums["samples"][:-1]]).astype(int)
    wrong = np.add.reduceat(z.argmax(1) != batch.targets, starts, dtype=int)
    np.testing.assert_array_equal(sums["error"], wrong)
    losses = np.log(np.exp(z).sum(1)) - z[np.arange(SAMPLES), batch.targets]
    np.testing.assert_allclose(sums["loss"], np.add.reduceat(losses, starts), rtol=1e-4)


def test_a_part_may_have_fewer_samples_than_blocks(alone: Callable[..., Any], folder: Path) -> None:
    """Each is then a block; their mean is what the table says."""
    make_frames(folder / "small", lengths=(4, 1, 6))
    assert alone("evaluate", "run", "small", "--blocks", "blocks.json").status == 0
    told = json.loads(alone("evaluate", "run", "small", "--json").out)
    sums = json.loads((folder / "blocks.json").read_text())["test"]
    assert sums["samples"] == [1] * 11 and sum(sums["error"]) / 11 == told["test_error"]
    assert sum(sums["loss"]) / 11 == pytest.approx(told["test_loss"], rel=1e-6)


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_file_that_cannot_be_written_is_one_line(launch: Callable[..., Any], folder: Path, ranks: int) -> None:
    (folder / "file").touch()
    ended = launch(ranks, "evaluate", "run", "--blocks", "file/blocks.json", deadline=60)
    ours = [line for line in ended.err.splitlines() if line.startswith("mpitrain: ")]
    assert ended.status == 2 and len(ours) == 1 and "file" in ours[0], ended.err
    assert "Traceback" not in ended.err
