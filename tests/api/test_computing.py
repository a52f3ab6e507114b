"""What computes the network where "auto" is said: one way for all ranks, and a sentence for what leaves no choice."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mpitrain import config as configuration
from mpitrain.api import computing
from mpitrain.api.computing import chosen
from mpitrain.api.options import TrainOptions
from mpitrain.mpi import Transport
from mpitrain.simulation.job import Job
from mpitrain.training.step_times import StepTimes

BOTH = ("model.backend=auto", "run.matmul=auto")
AUTO = ("--set", BOTH[0], "--set", BOTH[1], "--set", "run.device=cpu")
Chosen = tuple[list[tuple[str, str]], str]


@pytest.fixture
def by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Chosen]:
    """What ranks choose, with these settings, where they take these seconds for a step of each way; what they say."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(computing, "find_spec", lambda name: name)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0")  # PyTorch may be missing
    monkeypatch.setattr(computing, "available", lambda: False)
    monkeypatch.setattr(computing, "steps", lambda config, of, *rest: of)

    def run(seconds: list[list[float]], *settings: str) -> Chosen:
        config = configuration.load(None, ["algorithm.name=allreduce", *settings])

        def program(transport: Transport) -> tuple[str, str]:
            transport.runtime.simulated = 0  # type: ignore[misc]  # they stand in for real ones
            found, _ = chosen(transport, config, TrainOptions(), {})
            return found.model.backend, found.run.matmul

        taken = iter(seconds)
        monkeypatch.setattr(computing, "timed", lambda of, every, samples: StepTimes(samples, next(taken), of))
        return Job[tuple[str, str]](len(seconds), deadline=20.0).run(program), capsys.readouterr().err

    return run


def test_one_way_for_all_ranks_best_for_the_slowest(by: Callable[..., Chosen]) -> None:
    """NumPy 1 and 4 s, PyTorch 2 and 3, in bf16 4 and 1: of the slower rank each time 4, 3 and 4."""
    found, said = by([[1.0, 2.0, 4.0], [4.0, 3.0, 1.0]], *BOTH)
    assert found == [("torch", "float32")] * 2
    line = "mpitrain: model.backend and run.matmul = 'auto': PyTorch, 3,000.00 ms for 8 samples, "
    assert said == f"{line}NumPy 1.33 and PyTorch in bf16 1.33 times as long; 1 thread a rank, the slowest of 2\n"


def test_times_are_taken_once(by: Callable[..., Chosen], tmp_path: Path) -> None:
    """The second time they come from the file, of the slowest rank."""
    first, said = by([[1.0, 2.0, 0.5], [1.0, 2.0, 0.25]], *BOTH)
    again, line = by([[9.0, 9.0, 9.0], [9.0, 1.0, 9.0]], *BOTH)
    assert first + again == [("torch", "bf16")] * 4
    assert "500.00 ms" in line and str(tmp_path) in line and str(tmp_path) not in said


def test_a_server_has_no_say(by: Callable[..., Chosen]) -> None:
    """It computes no gradients: only rank 1 takes a step, and the server goes by its times."""
    found, said = by([[0.001, 0.002], []], "model.backend=auto", "algorithm.name=asgd")
    assert found == [("numpy", "float32")] * 2 and "slowest" not in said


def test_a_team_times_what_one_of_its_ranks_computes(by: Callable[..., Chosen]) -> None:
    """Four ranks beside the server are two teams, which halve each minibatch."""
    settings = ("model.backend=auto", "algorithm.name=easgd", "training.minibatch=16")
    assert "for 16 samples" in by([[0.001, 0.002]] * 5, *settings)[1]
    assert "for 8 samples" in by([[0.001, 0.002]] * 5, *settings, "run.team=2")[1]


@pytest.mark.parametrize(
    ("settings", "way", "why"),
    [
        (["algorithm.name=hybrid"], "numpy", "NumPy, since hybrid takes layers apart, which PyTorch computes together"),
        (["pretraining.method=layerwise"], "numpy", "NumPy, since pretraining.method = 'layerwise' takes layers apart"),
        (["model.backend=numpy"], "numpy", "run.matmul = 'auto': NumPy, which multiplies in the dtype of the"),
        (["model.backend=torch", "training.dtype=float64"], "torch", "PyTorch, which multiplies in the dtype of the"),
    ],
)
def test_where_there_is_no_choice(by: Callable[..., Chosen], settings: list[str], way: str, why: str) -> None:
    found, said = by([[]], *BOTH, *settings)
    assert found == [(way, "float32")] and why in said


def test_a_rank_without_pytorch_or_with_a_gpu_leaves_none(
    by: Callable[..., Chosen], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(computing, "find_spec", lambda name: None)
    assert by([[], []], *BOTH)[1].endswith("NumPy, since rank 0 has no PyTorch (the extra mpitrain[torch])\n")
    monkeypatch.setattr(computing, "available", lambda: True)
    assert by([[]], *BOTH)[1].endswith("NumPy, since rank 0 has a GPU, where no steps are timed\n")


def test_nothing_is_said_where_it_is_not_asked_for_or_wanted(by: Callable[..., Chosen]) -> None:
    assert by([[]]) == ([("numpy", "float32")], "")
    assert by([[1.0, 0.5]], "model.backend=auto", "run.progress=none") == ([("torch", "float32")], "")


@pytest.mark.usefixtures("no_gpu")
def test_simulated_ranks_time_nothing(simulated: Callable[..., Any], tmp_path: Path) -> None:
    ended = simulated(2, "--out", "run", "--set", "training.epochs=0.1", *AUTO)
    assert (
        ended.status == 0
        and "NumPy, since the cluster's file says how long simulated ranks take" in ended.out + ended.err
    )
    table = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert (table["model"]["backend"], table["run"]["matmul"]) == ("numpy", "float32")


def test_a_run_keeps_what_it_has_chosen(
    launch: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Printed, it is "auto"; the run folder has what was chosen, which evaluate and a resume take."""
    pytest.importorskip("torch", reason="needs PyTorch (the extra mpitrain[torch])")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    short = ["--set", "algorithm.name=allreduce", "--set", "training.epochs=0.2"]
    printed = launch(1, *short, *AUTO, "--print-config")
    assert printed.out.count('= "auto"\n') >= 2 and 'backend = "auto"' in printed.out
    begun = launch(2, *short, *AUTO, "--out", "run")
    assert begun.status == 0, begun.err
    assert (
        "model.backend and run.matmul = 'auto': " in begun.out + begun.err and "times as long" in begun.out + begun.err
    )
    table = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    chosen_first = table["model"]["backend"], table["run"]["matmul"]
    assert "auto" not in chosen_first
    went_on = launch(2, "--resume", "run", "--set", "training.epochs=0.3", *AUTO)
    assert went_on.status == 0 and "'auto'" not in went_on.out + went_on.err
    table = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert (table["model"]["backend"], table["run"]["matmul"]) == chosen_first
    assert launch(1, "evaluate", "run").status == 0
    (kept,) = (tmp_path / "cache").rglob("*.json")
    kept.write_text(kept.read_text()[:40])
    again = launch(2, *short, *AUTO, "--out", "other")
    assert again.status == 0 and "does not match its checksum; the steps are timed anew" in again.err
    assert json.loads((tmp_path / "other" / "summary.json").read_text())["exit_reason"] == "finished"
