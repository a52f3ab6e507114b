"""Which checkpoint of a run is taken, and what of it."""

from pathlib import Path
from shutil import rmtree

import numpy as np
import pytest

from mpitrain import checkpoint
from mpitrain import config as configuration
from mpitrain.algorithms import ALGORITHMS
from mpitrain.data import origin
from mpitrain.errors import BadInput
from mpitrain.sampling.queue import Queue
from mpitrain.trained.model import load
from mpitrain.training import inputs
from mpitrain.training.context import fresh

from .conftest import make_run


def test_the_newest_whole_checkpoint_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unless another one is named; a torn one is skipped and said so."""
    thetas = {samples: make_run(tmp_path, samples=samples, seed=samples) for samples in (100, 200, 300)}
    assert load(tmp_path).samples == 300
    np.testing.assert_array_equal(load(tmp_path, "000000000100").parameters, thetas[100])
    (tmp_path / "checkpoints" / "000000000300" / "state.h5").write_bytes(b"torn")
    np.testing.assert_array_equal(load(tmp_path).parameters, thetas[200])
    assert "000000000300" in capsys.readouterr().err
    with pytest.raises(BadInput, match=r"000000000300: state\.h5 does not match its checksum"):
        load(tmp_path, "000000000300")
    with pytest.raises(BadInput, match="no such checkpoint; there: 000000000100, "):
        load(tmp_path, "17")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_of_every_algorithm_the_model_is_what_the_summary_hashes(tmp_path: Path, name: str) -> None:
    """The average where one is kept, θ − δv of MDOWNPOUR, else θ: whatever `State.model` says."""
    config = configuration.load(None, [f"algorithm.name={name}", "model.preset=digits-cnn"])
    make_run(tmp_path, f"algorithm.name={name}")
    network = load(tmp_path).network
    rng = np.random.default_rng(5)
    state = fresh(config.algorithm, network.initial(1), Queue(1438, 10**6))
    for name, vector in state.vectors().items():
        if name != "counts":
            vector[:] = rng.standard_normal(len(vector))
    state.trained = 500
    draft = checkpoint.Draft(tmp_path / "checkpoints", 500)
    draft.begin(0)
    draft.write("state.h5", checkpoint.FileContent(state.vectors(), state.numbers()), network.layout)
    draft.commit(3, {"config.toml": (tmp_path / "config.toml").read_text()})
    model = load(tmp_path)
    assert model.samples == 500
    np.testing.assert_array_equal(model.parameters, state.model)


def test_a_folder_without_the_record_of_its_data_asks_the_data(tmp_path: Path) -> None:
    make_run(tmp_path)
    (tmp_path / origin.NAME).unlink()
    assert load(tmp_path).origin.classes == 10


def test_a_checkpoint_that_a_training_deletes_meanwhile_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the moment when it was the newest and that when it is read."""
    make_run(tmp_path / "run")
    monkeypatch.setattr(inputs, "code_of", lambda *given: rmtree(tmp_path / "run" / "checkpoints") or {})
    with pytest.raises(BadInput, match=r"checkpoints/0+100: a training has just replaced it .*; try again$"):
        load(tmp_path / "run")


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="nowhere: no such run folder"):
        load(tmp_path / "nowhere")
    with pytest.raises(BadInput, match=r"no config\.toml"):
        load(tmp_path)
    make_run(tmp_path, samples=100)
    (tmp_path / "checkpoints" / "000000000100" / "manifest.json").unlink()
    with pytest.raises(BadInput, match="checkpoints: no whole checkpoint"):
        load(tmp_path)
