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

#: One rank stops or kills itself when its time has come; where that is another rank's affair, that one waits for it.
PROGRAM = """
import atexit, os, sys, threading, time
from pathlib import Path
victim, phase, number = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
del sys.argv[1:4]
from mpitrain.start import rank_of
rank = rank_of(os.environ, -1)

losing = threading.Lock()  # two threads may come to it at once

def lose():
    if rank == victim and losing.acquire(blocking=False):
        Path("lost.new").write_text(repr(time.time()))
        Path("lost.new").rename("lost")
        os.kill(os.getpid(), number)

class Loading:  # of the modules that train, which is a phase of its own
    def find_spec(self, name, path=None, target=None):
        if name == "mpitrain.api.train":
            lose()

if phase == "launch":
    lose()
if phase in ("launch", "loading"):
    sys.meta_path.insert(0, Loading())
    from mpitrain.__main__ import main
    sys.exit(main())

def called():
    while not Path("calls").exists():
        time.sleep(0.01)
    lose()

def call(condition=lambda *arguments, **names: True):
    if rank == victim:
        lose()
    Path("calls").touch()
    end = time.monotonic() + 3
    while not Path("lost").exists() and time.monotonic() < end:
        time.sleep(0.01)

def before(owner, name, what, condition=lambda *arguments, **names: True):
    plain = getattr(owner, name)
    def instead(*arguments, **names):
        if condition(*arguments, **names):
            what()
        return plain(*arguments, **names)
    setattr(owner, name, instead)

import itertools
from mpitrain.mpi import Transport
from mpitrain.checkpoint import last
from mpitrain.api import train as run
from mpitrain.__main__ import main
from mpitrain.monitoring.evaluation import Evaluation
from mpitrain.training.gradients import Learner
from mpitrain.monitoring.monitor import MasterMonitor
from mpitrain.api import pretraining
turns = itertools.count()
if phase in ("pre-training", "training", "checkpoint", "evaluation", "busy"):
    threading.Thread(target=called, daemon=True).start() if rank == victim else None
if phase == "start":
    before(Transport, "__init__", lose)
elif phase == "preparation":
    before(run, "prepare", lose)
elif phase == "compilation":  # which takes its time, while who waits for it is lost
    before(run, "warm", lambda: time.sleep(30) if rank == 0 != victim else lose())
    before(Transport, "local_barrier", lose)
elif phase == "pre-training":
    steps = pretraining.steps
    def slowly(task):
        for step in steps(task):
            if next(turns) == 5:
                call()
            time.sleep(0.05)
            yield step
    pretraining.steps = slowly
elif phase in ("training", "busy"):
    before(Learner, "load", call, lambda *_: next(turns) == 20)
    if phase == "busy":  # the server has always something to do
        MasterMonitor.turn = lambda *_, **__: time.sleep(1e-3) is None
elif phase == "checkpoint":
    before(MasterMonitor, "checkpoint", call, lambda *_: next(turns) == 0 and rank == 0)
elif phase == "evaluation":
    before(Evaluation, "step", call, lambda *_: next(turns) == 0)
elif phase == "last checkpoint":
    before(last, "write", lose)
elif phase == "exit":
    atexit.register(lose)
elif phase == "end":
    before(Transport, "leave", lose)
sys.exit(main())
"""


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
    (folder / "losing.py").write_text(PROGRAM)
    command = [str(MPIRUN), "-n", str(RANKS), sys.executable, "losing.py", str(victim), phase, str(int(number))]
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
    started = [sys.executable, "-c", "import mpitrain.mpi"]
    subprocess.run(started, env={**os.environ, "MPI_LOCALRANKID": "0"}, check=True, timeout=120)
    assert not any(map(os.path.exists, left))
    assert not list(tmp_path.glob("mpitrain/segments/*/*"))
