"""`train --continue DIR`, by which a job starts and goes on with one command line, and the warnings that stop it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .cluster import until
from .gate import Gate

MPIRUN = Path(sys.executable).with_name("mpirun")
RUN = ("--set", "algorithm.name=allreduce", "--set", "run.evaluate_every=0", "--continue", "run")


def warned(folder: Path, *arguments: str, once: Callable[[], bool], **variables: str) -> int:
    """The exit status of a run on two ranks that got SIGUSR1 once something was so."""
    if not MPIRUN.exists():
        pytest.skip("this environment has no mpirun of its own")
    command = [MPIRUN, "-n", "2", sys.executable, "-m", "mpitrain", *arguments]
    process = subprocess.Popen(command, cwd=folder, env={**os.environ, **variables}, start_new_session=True)
    try:
        until(once, "the moment to warn", 120)
        process.send_signal(signal.SIGUSR1)  # mpirun passes it on
        return process.wait(120)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def events(folder: Path) -> list[str]:
    """What metrics.jsonl tells of."""
    return [json.loads(line)["event"] for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]


def summary(folder: Path) -> dict[str, Any]:
    """summary.json."""
    return dict(json.loads((folder / "run" / "summary.json").read_text()))


def test_the_same_words_start_and_resume(tmp_path: Path, launch: Callable[..., Any]) -> None:
    """A warned run ends with status 75, and, started again, with the bits of an uninterrupted one."""
    words, gate = ("--set", "training.epochs=10", *RUN), Gate(tmp_path)
    assert warned(tmp_path, *words, once=gate.reached, **gate.variables) == 75
    assert summary(tmp_path)["exit_reason"] == "stopped"
    assert launch(2, *words, deadline=400).status == 0
    assert events(tmp_path).count("start") == 2
    resumed = summary(tmp_path)
    (tmp_path / "run").rename(tmp_path / "before")
    assert launch(2, *words, deadline=400).status == 0
    assert resumed["parameters_sha256"] == summary(tmp_path)["parameters_sha256"]


def test_a_stopped_pretraining_starts_over(tmp_path: Path, launch: Callable[..., Any]) -> None:
    """It leaves no checkpoint; the next start begins with the first layer, and the records of the first are gone."""
    settings = ("model.preset=zhang2013-dnn", "model.width=0.02", "pretraining.method=layerwise", "training.epochs=1")
    words = (*(word for setting in settings for word in ("--set", setting)), *RUN)
    log = tmp_path / "run" / "metrics.jsonl"
    long = (*words, "--set", "pretraining.epochs=3000")
    assert warned(tmp_path, *long, once=lambda: log.exists() and '"event": "start"' in log.read_text()) == 75
    assert not list((tmp_path / "run" / "checkpoints").glob("[0-9]*"))
    assert launch(2, *words, "--set", "pretraining.epochs=1", deadline=400).status == 0
    assert events(tmp_path).count("start") == 1 and events(tmp_path).count("pretraining") == 5


def test_torn_checkpoints_are_not_taken_for_none(tmp_path: Path, launch: Callable[..., Any]) -> None:
    """A start afresh would overwrite what can perhaps be saved: status 2, the checkpoint named, nothing touched."""
    words = ("--set", "training.epochs=1", *RUN)
    assert launch(1, *words).status == 0
    for path in (tmp_path / "run" / "checkpoints").glob("[0-9]*/state.h5"):
        path.write_bytes(path.read_bytes()[:1000])
    before = events(tmp_path)
    ended = launch(2, *words)
    assert ended.status == 2 and "000000001438" in ended.err and "Traceback" not in ended.err
    assert events(tmp_path) == before


def test_a_run_has_one_folder(launch: Callable[..., Any]) -> None:
    """--out, --resume and --continue exclude each other: status 2."""
    assert launch(1, "--out", "a", "--continue", "b").status == 2
