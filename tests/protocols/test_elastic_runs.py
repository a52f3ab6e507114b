"""The elastic algorithms from outside: the run folder, warnings, faults, signals and resuming."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults import Fault, program

ASYNCHRONOUS = ("easgd", "eamsgd", "downpour", "admm", "adownpour", "mvadownpour", "mdownpour")
IN_STEP = ("easgd-sync", "eamsgd-sync", "block-momentum")
NAMES = (*ASYNCHRONOUS, *IN_STEP)
IN_TURN = {"admm": ("algorithm.order=round-robin",)}


def settings(*keys: str) -> list[str]:
    """Each key=value after its --set."""
    return [word for key in keys for word in ("--set", key)]


def summary(folder: Path) -> dict[str, Any]:
    """The run's summary.json."""
    return dict(json.loads((folder / "summary.json").read_text()))


def events(folder: Path, event: str) -> list[dict[str, Any]]:
    """The records of one kind."""
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    records = [json.loads(line) for line in lines if line.endswith("\n")]  # the last may be being written
    return [record for record in records if record["event"] == event]


@pytest.mark.parametrize("name", NAMES)
def test_the_name_alone_trains_the_digits(simulated: Callable[..., Any], tmp_path: Path, name: str) -> None:
    """Below 10 % test error, all samples, two vectors an exchange. ADMM's centre is the mean of all workers' points, so
    that one which is held up for a second spoils it: in turn they advance alike."""
    keys = (f"algorithm.name={name}", "run.train_subset=100", *IN_TURN.get(name, ()))
    ended = simulated(3, "--out", "run", *settings(*keys))
    assert ended.status == 0, ended.err
    found = summary(tmp_path / "run")
    assert found["test_error"] < 0.1 and found["samples"] == (20 * 1438) and found["exit_reason"] == "finished"
    assert found["workers"] == (3 if name in IN_STEP else 2)
    assert all(record["train_subset_loss"] > 0 for record in events(tmp_path / "run", "evaluate"))
    one_sided = name in ("easgd", "eamsgd", "downpour", "admm")
    assert (found["staleness_mean"] is None) == (found["staleness_max"] is None) == one_sided  # nobody numbers updates
    assert ("staleness" in ended.out) == (not one_sided and name not in IN_STEP)  # of ranks in step it is always 0
    if name in ("easgd", "eamsgd", "admm"):
        vectors = found["updates"] * 38_282 * 4
        for key in ("bytes_sent", "bytes_received"):
            assert vectors <= found[key] <= 1.1 * vectors


@pytest.mark.parametrize(("preset", "ranks"), [("bmuf", 2), ("slowmo", 2), ("diloco", 1)])
def test_presets_of_block_momentum_train_the_digits(
    simulated: Callable[..., Any], tmp_path: Path, preset: str, ranks: int
) -> None:
    """At their own settings."""
    keys = ("algorithm.name=block-momentum", f"algorithm.preset={preset}", "run.evaluate_every=0")
    assert simulated(ranks, "--out", "run", *settings(*keys)).status == 0
    assert summary(tmp_path / "run")["test_error"] < 0.1


def test_a_moving_rate_outside_the_condition_is_a_warning(simulated: Callable[..., Any], tmp_path: Path) -> None:
    """α = 1.2 with η = 0.05: a line and a record, and the run goes on."""
    keys = ("algorithm.name=easgd", "algorithm.alpha=1.2", "training.learning_rate=0.05", "training.epochs=1")
    ended = simulated(2, "--out", "run", *settings(*keys))
    assert ended.status == 0 and "warning: α = 1.2" in ended.out
    assert [record["alpha"] for record in events(tmp_path / "run", "warning")] == [1.2]


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        (["algorithm.tau=1000"], "algorithm.tau"),
        (["algorithm.alpha=-1"], "algorithm.alpha"),
        (["training.learning_rate=0"], "training.learning_rate"),
        (["algorithm.centre=sharded", "run.exchange=messages"], "algorithm.centre"),
    ],
)
def test_what_cannot_work_is_bad_input(simulated: Callable[..., Any], keys: list[str], named: str) -> None:
    """One line that names the key, status 2."""
    ended = simulated(3, "--out", "run", *settings("algorithm.name=easgd", *keys))
    assert ended.status == 2
    assert len(ended.err.strip().splitlines()) == 1 and named in ended.err


@pytest.mark.parametrize("name", ["easgd", "easgd-sync", "admm"])
def test_workers_start_apart_only_at_the_start(simulated: Callable[..., Any], tmp_path: Path, name: str) -> None:
    """On another number of ranks a run goes on from the centre, whatever `algorithm.start` says."""
    keys = settings(f"algorithm.name={name}", "training.epochs=1", "run.evaluate_every=0")
    assert simulated(3, "--out", "same", *keys).status == 0
    shutil.copytree(tmp_path / "same", tmp_path / "different")
    ends = list[str]()
    for start in ("same", "different"):
        more = settings("training.epochs=2", f"algorithm.start={start}")
        assert simulated(4, "--resume", start, *more).status == 0
        ends.append(summary(tmp_path / start)["parameters_sha256"])
    assert ends[0] == ends[1]


@pytest.mark.parametrize(
    ("name", "ranks"),
    [("eamsgd", 3), ("admm", 3), ("eamsgd-sync", 3), ("downpour", 2), ("easgd", 1), ("easgd-sync", 1)],
)
def test_a_stopped_run_goes_on(tmp_path: Path, launch: Callable[..., Any], name: str, ranks: int) -> None:
    """A signal to three ranks, then the rest of the training by as many ranks or fewer; all samples are trained on."""
    long = ("training.epochs=100000", "run.evaluate_every=0", "algorithm.tau=7")
    keys = settings(f"algorithm.name={name}", *long, *IN_TURN.get(name, ()))
    mpirun = str(Path(sys.executable).with_name("mpirun"))
    command = [mpirun, "-n", "3", sys.executable, "-m", "mpitrain", "--out", "run", *keys]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, start_new_session=True)
    metrics = tmp_path / "run" / "metrics.jsonl"
    deadline = time.monotonic() + 60
    try:
        while not (metrics.exists() and any(found["samples"] for found in events(tmp_path / "run", "train"))):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) != 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    stopped = summary(tmp_path / "run")
    assert stopped["exit_reason"] == "stopped" and 0 < stopped["samples"] < 100000 * 1438
    epochs = stopped["samples"] // 1438 + 8
    ended = launch(ranks, "--resume", "run", *settings(f"training.epochs={epochs}"))
    assert ended.status == 0, ended.err
    again = summary(tmp_path / "run")
    assert again["samples"] == epochs * 1438 and again["test_error"] < 0.1


def test_the_summary_tells_of_the_last_moves_of_the_centre(launch: Callable[..., Any], tmp_path: Path) -> None:
    """What a worker still has to give moves x̃ after all samples have been counted, and evaluated."""
    last = "mpitrain.protocols.server.adding.AddingWorker._finish"
    late = program(Fault(last, ["call report", "sleep 3"]))
    keys = settings("algorithm.name=downpour", "algorithm.tau=16", "training.epochs=1")
    ended = launch(3, *keys, "--out", "run", program=late)
    assert ended.status == 0, ended.err
    assert json.loads(launch(1, "evaluate", "run", "--json").out)["test_loss"] == pytest.approx(
        summary(tmp_path / "run")["test_loss"], rel=1e-5
    )
