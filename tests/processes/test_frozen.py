"""A rank that is stopped or killed, in every phase of a training: the others name it in time, and the job ends.

`--lost all`: every algorithm in every phase, which takes half an hour; by default some of them.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.faults import Fault, program

MPIRUN = Path(sys.executable).with_name("mpirun")
pytestmark = pytest.mark.skipif(not MPIRUN.exists(), reason="this environment has no mpirun of its own")

RANKS, DEADLINE, MORE = 3, 6.0, 5.0  # MORE: seconds after the deadline within which a frozen rank is named
KILLED = 10.0  # seconds within which a job ends one of whose ranks was killed
BUSY = 30.0  # seconds more that a busy machine may take
ALGORITHMS = ("asgd", "easgd", "sparse-delta", "hybrid", "allreduce")
PHASES = (
    "launch",
    "start",
    "loading",
    "preparation",
    "compilation",
    "pre-training",
    "training",
    "checkpoint",
    "evaluation",
    "last checkpoint",
    "end",
    "exit",
)
CHOSEN = {("asgd", "start", 0), ("sparse-delta", "preparation", 1), ("easgd", "training", 0)}
CHOSEN |= {("asgd", "launch", 1), ("asgd", "loading", 1), ("asgd", "compilation", 1), ("msgd", "exit", 1)}
CHOSEN |= {("msgd", "training", 0), ("asgd", "busy", 1)}
CHOSEN |= {("hybrid", "evaluation", 1), ("allreduce", "last checkpoint", 1)}

TRAIN, LOAD = "mpitrain.api.train", "mpitrain.training.gradients.Learner.load"
MONITOR = "mpitrain.monitoring.monitor.MasterMonitor"
#: What comes to a point where the rank is to be lost tells that rank, and gives it some time.
CALLS = ["touch calls", "await lost 3"]


def faults(phase: str, victim: int, number: int) -> list[Fault]:
    """The rank loses itself in a phase; where that is another rank's affair, that one waits for it."""
    lost = [f"lose {number}"]
    at = {
        "launch": "",
        "loading": f"import {TRAIN}",
        "start": "mpitrain.mpi.Transport.__init__",
        "preparation": f"{TRAIN}.prepare",
        "last checkpoint": "mpitrain.checkpoint.last.write",
        "end": "mpitrain.mpi.Transport.leave",
        "exit": "exit",
    }
    if phase in at:
        return [Fault(at[phase], lost, victim)]
    if phase == "compilation":  # which takes its time, while who waits for it is lost
        compiling = lost if victim == 0 else ["sleep 30"]
        return [Fault(f"{TRAIN}.warm", compiling, 0), Fault("mpitrain.mpi.Transport.local_barrier", lost, victim)]
    told = [Fault("thread", ["await calls", *lost], victim)]
    if phase == "pre-training":
        step = "mpitrain.training.pretraining.PretrainingStep"
        return [*told, Fault(step, CALLS, call=5), Fault(step, ["sleep 0.05"])]
    if phase == "busy":  # the server has always something to do
        told.append(Fault(f"{MONITOR}.turn", ["sleep 0.001", "return true"]))
    calling = {
        "checkpoint": Fault(f"{MONITOR}.checkpoint", CALLS, 0, 0),
        "evaluation": Fault("mpitrain.monitoring.evaluation.Evaluation.step", CALLS, call=0),
    }
    return [*told, calling.get(phase, Fault(LOAD, CALLS, call=20))]


def settings(algorithm: str, phase: str) -> list[str]:
    """The command line of a training that comes to its phase soon."""
    epochs = 2 if phase in ("last checkpoint", "end", "exit") else 1000
    sets = [f"algorithm.name={algorithm}", f"run.deadline={DEADLINE:g}", f"training.epochs={epochs}"]
    sets += ["run.checkpoint_samples=1000" if phase == "checkpoint" else "run.checkpoint_samples=0"]
    sets += ["run.evaluate_every=1" if phase == "evaluation" else "run.evaluate_every=0"]
    if phase == "pre-training":
        sets += ["pretraining.method=layerwise", "pretraining.epochs=1000"]
    return [word for each in sets for word in ("--set", each)]


def lose(folder: Path, algorithm: str, phase: str, victim: int, number: int) -> tuple[str, float, int]:
    """Standard error of a training that loses a rank, seconds from then until it ended, its status."""
    command = [str(MPIRUN), "-n", str(RANKS), sys.executable, *program(*faults(phase, victim, int(number)))]
    command += [*settings(algorithm, phase), "--out", "run"]
    pipe, environment = subprocess.PIPE, {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=pipe, text=True, start_new_session=True
    )
    try:
        err = process.communicate(timeout=90)[1]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return f"no end\n{process.communicate()[1]}", 90.0, -1
    if not (folder / "lost").exists():
        return f"did not come to it\n{err}", 0.0, process.returncode
    return err, time.time() - float((folder / "lost").read_text()), process.returncode


def cells(config: pytest.Config) -> list[tuple[str, str, int]]:
    """Algorithm, phase, victim."""
    if config.getoption("--lost") != "all":
        return sorted(CHOSEN)
    return [(algorithm, phase, victim) for phase in PHASES for algorithm in ALGORITHMS for victim in (1, 0)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The cells that are wanted."""
    wanted = cells(metafunc.config)
    if metafunc.function is test_a_killed_rank_ends_the_job and metafunc.config.getoption("--lost") != "all":
        wanted = [cell for cell in wanted if cell[1] in ("start", "evaluation")]
    metafunc.parametrize(("algorithm", "phase", "victim"), wanted)


def test_a_frozen_rank_is_named(tmp_path: Path, algorithm: str, phase: str, victim: int) -> None:
    """Whatever it was about, by a rank that lives, within its deadline and a little more."""
    err, seconds, status = lose(tmp_path, algorithm, phase, victim, signal.SIGSTOP)
    named = re.findall(r"^mpitrain: rank (\d): waited \S+ s for ranks? ([\d, ]+) \(", err, re.MULTILINE)
    print(f"{algorithm} {phase} {victim}: {seconds:.1f} s {named}")
    assert status > 0 and named and all(ranks == str(victim) for _, ranks in named), err
    assert seconds < DEADLINE + MORE + BUSY, err
    assert str(tmp_path) not in err, "a folder that was given as `run`"
    if phase in ("training", "busy", "evaluation", "last checkpoint"):
        records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
        failed = [record for record in records if record["event"] == "failed"]
        assert failed and failed[0]["silent"] == [victim] and failed[0]["text"] in err, records


def test_a_killed_rank_ends_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str, phase: str, victim: int
) -> None:
    """In time; and what it left in /dev/shm is gone after the next start."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    err, seconds, status = lose(tmp_path, algorithm, phase, victim, signal.SIGKILL)
    print(f"{algorithm} {phase} {victim}: {seconds:.1f} s")
    assert status != 0 and seconds < KILLED + BUSY, err
    left = {line.split()[1] for record in tmp_path.glob("mpitrain/segments/*/*") for line in record.open()}
    started = [sys.executable, "-c", "from mpitrain.mpi.process import PROCESS; PROCESS.start()"]
    subprocess.run(started, env={**os.environ, "MPI_LOCALRANKID": "0"}, check=True, timeout=120)
    assert not any(map(os.path.exists, left))
    assert not list(tmp_path.glob("mpitrain/segments/*/*"))
