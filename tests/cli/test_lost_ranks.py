"""`mpitrain launch` in earnest: a rank is killed or frozen in a phase of a training, which finishes all the same.

`--lost all`: every phase of six algorithms, rank 0 and another one, killed and frozen: 192 trainings, some 20 s each on
two cores. Each prints the seconds from the loss to the first minibatch afterwards, and the samples trained again.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mpitrain.report.runs import read_run
from tests.faults import Fault, program

MPIRUN = Path(sys.executable).with_name("mpirun")
pytestmark = pytest.mark.skipif(not MPIRUN.exists(), reason="this environment has no mpirun of its own")

RANKS, SAMPLES, EPOCHS, DEADLINE = 4, 1438, 3, 6.0
ALGORITHMS = ("asgd", "easgd", "sparse-delta", "allreduce", "hybrid", "block-momentum")
PHASES = ("start", "first exchange", "training", "checkpoint", "evaluation", "stage change", "stop", "end")
NUMBERS = {"killed": signal.SIGKILL, "frozen": signal.SIGSTOP}
CHOSEN = [("allreduce", "training", 1, "killed"), ("asgd", "checkpoint", 0, "frozen"), ("hybrid", "stop", 1, "killed")]
CHOSEN += [("allreduce", "evaluation", 0, "killed")]

LOAD, MONITOR = "mpitrain.training.gradients.Learner.load", "mpitrain.monitoring.monitor.MasterMonitor"
#: What comes to a point where the rank is to be lost tells that rank, and gives it some time.
CALLS = ["touch calls", "await lost 3"]
#: Starts the ranks with the fault until it has happened, then without; `loads-*` are those of the last start.
LAUNCHER = """#!/bin/sh
echo "$@" >> starts
rm -f loads-*
shift 4
faults='{faulty}'
[ -e lost ] && faults='{noted}'
exec {mpirun} -n {ranks} {python} {faults} "$faults" "$@"
"""


def faults(phase: str, victim: int, number: int) -> list[Fault]:
    """The rank loses itself in a phase; where that is another rank's affair, that one waits for it."""
    lost = [f"lose {number}"]
    at = {
        "start": "mpitrain.mpi.Transport.__init__",  # after MPI_Init
        "stop": "mpitrain.api.train.finish",
        "end": "mpitrain.mpi.Transport.leave",
    }
    if phase in at:
        return [Fault(at[phase], lost, victim)]
    calling = {
        "first exchange": Fault(LOAD, CALLS, call=1),
        "training": Fault(LOAD, CALLS, call=40),
        "checkpoint": Fault(f"{MONITOR}.checkpoint", CALLS, 0, 1),
        "evaluation": Fault("mpitrain.monitoring.evaluation.Evaluation.step", CALLS, call=1),
        "stage change": Fault(LOAD, ["from 2157", *CALLS]),
    }
    return [calling[phase], Fault("thread", ["await calls", *lost], victim)]


def cells(config: pytest.Config) -> list[tuple[str, str, int, str]]:
    """Algorithm, phase, victim, what happens to it."""
    if config.getoption("--lost") != "all":
        return CHOSEN
    return [
        (algorithm, phase, victim, what)
        for phase in PHASES
        for algorithm in ALGORITHMS
        for victim in (0, 1)
        for what in NUMBERS
    ]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The cells that are wanted."""
    metafunc.parametrize(("algorithm", "phase", "victim", "what"), cells(metafunc.config))


def launched(folder: Path, algorithm: str, stopped: bool) -> tuple[int, str]:
    """Exit status and standard error of a launch, which gets a signal in the middle of its training if `stopped`."""
    keys = (f"algorithm.name={algorithm}", f"training.epochs={EPOCHS}", "training.minibatch=16", "run.evaluate_every=1")
    keys += (f"run.deadline={DEADLINE:g}", "run.checkpoint_samples=512", "stages=[{at=1.5,minibatch=32}]")
    words = [word for key in keys for word in ("--set", key)]
    command = [sys.executable, "-m", "mpitrain", "launch", "-n", str(RANKS), "--launch", "sh launcher {ranks}"]
    process = subprocess.Popen(
        [*command, *words, "--continue", "run"],
        cwd=folder,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        while stopped and process.poll() is None and sum(len(loads) for loads in noted(folder)) < 60:
            time.sleep(0.05)
        if stopped:
            process.send_signal(signal.SIGUSR1)
        err = process.communicate(timeout=300)[1]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail(f"no end\n{process.communicate()[1]}")
    return process.returncode, err


def noted(folder: Path) -> list[list[list[float]]]:
    """What each rank has loaded since the last start: time, epoch, first sample, count."""
    files = [file.read_text().splitlines() for file in folder.glob("loads-*")]
    return [[[float(word) for word in line.split()] for line in lines if line.count(" ") == 3] for lines in files]


def test_a_lost_rank_costs_what_came_after_the_checkpoint(
    tmp_path: Path, algorithm: str, phase: str, victim: int, what: str
) -> None:
    """The training finishes, every sample after the last checkpoint is trained on exactly once, and each epoch is
    evaluated. One that was stopped by a signal when it lost the rank is started again by whoever sent that."""
    note = Fault(LOAD, ["note loads-{rank}"])
    faulty, plain = program(note, *faults(phase, victim, int(NUMBERS[what]))), program(note)
    script = LAUNCHER.format(
        faulty=faulty[1], noted=plain[1], mpirun=MPIRUN, ranks=RANKS, python=sys.executable, faults=plain[0]
    )
    (tmp_path / "launcher").write_text(script)
    status, err = launched(tmp_path, algorithm, phase == "stop")
    assert (tmp_path / "lost").exists(), f"did not come to it\n{err}"
    if phase == "stop":
        assert status == 75, err
        status, err = launched(tmp_path, algorithm, False)
    assert status == 0, err
    told = json.loads((tmp_path / "run" / "summary.json").read_text())
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    starts, restarts = ([each for each in records if each["event"] == event] for event in ("start", "restart"))
    assert told["exit_reason"] == "finished" and told["samples"] == EPOCHS * SAMPLES
    unstarted = err.count("The PMIx server's listener thread failed to start")  # a fault of Open MPI's launcher
    assert told["restarts"] == len(restarts) == (phase not in ("stop", "end")) + unstarted, err
    evaluated = [int(each["epoch"]) for each in read_run(tmp_path / "run", "run").events("evaluate")]
    assert evaluated == [1, 2, 3]
    again = sum(each["repeated"] for each in restarts)
    loads = [load for of_rank in noted(tmp_path) for load in of_rank]
    taken = [(epoch, start + k) for _, epoch, start, count in loads for k in range(int(count))]
    assert len(taken) == len(set(taken)) == told["samples"] - starts[-1]["samples"]
    if phase == "end":
        assert len((tmp_path / "starts").read_text().splitlines()) == 1
        return
    lost = float((tmp_path / "lost").read_text())
    seconds = min((load[0] for load in loads), default=lost) - lost
    print(f"\n{algorithm}, {phase}, rank {victim} {what}: {seconds:.1f} s, {again} again, {told['lost_ranks']}")
    if restarts and what == "frozen":
        assert [rank for rank, _ in told["lost_ranks"]] == [victim], err
