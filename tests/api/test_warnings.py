"""Warnings before a run: each for the configuration it is about, and none for the defaults."""

import os
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numba
import pytest

from mpitrain import config as configuration
from mpitrain.api import warnings


@pytest.mark.parametrize(
    ("settings", "counts", "measured", "warned"),
    [
        ([], [50, 50], ["test"], []),
        (["training.minibatch=100"], [50, 50], ["dev"], []),
        (["training.minibatch=101"], [50, 50], ["test"], ["training.minibatch = 101: an epoch has 100 samples"]),
        (["stages=[{at=20, minibatch=101}]"], [50, 50], ["test"], ["stages: at = 20.0: the training has ended"]),
        (['stages=[{at="150%", minibatch=9}]'], [50, 50], ["test"], ["stages: at = '150%': the training has ended"]),
        (["stages=[{at=30},{at=20},{at=2}]"], [50, 50], ["test"], ["stages: at = 30.0, 20.0: the training has ended"]),
        (['stages=[{at="99%", minibatch=9}]'], [50, 50], ["test"], []),
        ([], [0, 100, 0], ["test"], ["data.path: all samples are of one class"]),
        ([], [100], [], ["data.path: all samples are of one class", "data.path: there is no part dev or test"]),
    ],
)
def test_what_is_probably_not_intended(
    settings: list[str], counts: Sequence[int], measured: Collection[str], warned: list[str]
) -> None:
    schedule = configuration.load(None, settings).schedule(100)
    found = list(warnings.of_data(schedule, counts, measured))
    assert len(found) == len(warned) and all(map(str.startswith, found, warned)), found


@pytest.mark.parametrize(("algorithm", "warned"), [("sparse-delta", True), ("asgd", False)])
def test_a_run_folder_on_one_node_alone(algorithm: str, warned: bool, tmp_path: Path) -> None:
    """As in /tmp: every checkpoint waited `run.deadline` for the other ranks' parts, and failed."""
    real = SimpleNamespace(simulated=0)
    gathered = ["", "unseen", "unseen"]
    transport = SimpleNamespace(runtime=real, working=nullcontext, gather_texts=lambda own, what: gathered)
    config = configuration.load(None, [f"algorithm.name={algorithm}"])
    saver = SimpleNamespace(folder=tmp_path / "checkpoints")
    session: Any = SimpleNamespace(config=config, saver=saver, transport=transport)
    lines = warnings.of_unseen_folder(session)
    assert [line.split(": no checkpoint")[0] for line in lines] == [f"{tmp_path}: not seen by ranks 1, 2"] * warned


@pytest.mark.parametrize("remembers", [False, True])
def test_a_network_that_remembers(remembers: bool) -> None:
    network: Any = SimpleNamespace(name="model.import = 'net.py:build'", remembers=lambda: remembers)
    kept = [line.split(" in an attribute")[0] for line in warnings.of_network(network)]
    assert kept == [f"{network.name}: forward keeps what it has computed"] * remembers


def test_threads_that_are_not_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a BLAS that threadpoolctl does not know: three ranks on two cores trained a tenth of the samples."""
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    assert not list(warnings.of_threads(2, 2))
    monkeypatch.setattr(warnings, "threadpool_info", lambda: [{"user_api": "openmp"}])
    (warned,) = warnings.of_threads(2, 2)
    assert warned.startswith("run.threads: has no effect") and "OMP_NUM_THREADS=2" in warned
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert not list(warnings.of_threads(2, 2))


def test_more_threads_than_cores(launch: Callable[..., Any]) -> None:
    """As by a site's OMP_NUM_THREADS: three ranks of 64 trained 128 samples a second on two cores, not 25,000."""
    short = ("--set", "training.epochs=0.05", "--set", "run.evaluate_every=0")
    ended = launch(2, *short, "--set", f"run.threads={2 * (os.cpu_count() or 1)}")
    assert ended.status == 0 and "warning: run.threads: " in ended.out, ended.err
    assert "warning: run.threads" not in launch(2, *short, "--set", "run.threads=1").out
    assert not list(warnings.of_threads(2, 2)) and "run.threads=2" in next(warnings.of_threads(3, 2))


@pytest.mark.parametrize(
    ("name", "setting", "warned"),
    [
        ("allreduce", "run.exchange=shared", "run.exchange = 'shared': has no effect, allreduce has no server"),
        ("hybrid", "run.gradient_statistics=true", "run.gradient_statistics: has no effect, hybrid has no gradient"),
        ("asgd", "run.exchange=one-sided", ""),
        ("allreduce", "run.exchange=messages", ""),
    ],
)
def test_keys_that_change_nothing(simulated: Callable[..., Any], name: str, setting: str, warned: str) -> None:
    """One line says so."""
    words = ("--set", f"algorithm.name={name}", "--set", "training.epochs=0.1", "--set", "run.evaluate_every=0")
    ended = simulated(2, *words, "--set", setting)
    assert ended.status == 0 and f"warning: {warned}" * bool(warned) in ended.out
    assert ended.out.count("warning: run.") == bool(warned)


def test_loops_that_are_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not list(warnings.of_loops())
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    assert next(map(str.split, warnings.of_loops()))[0] == "NUMBA_DISABLE_JIT"
