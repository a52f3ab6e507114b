"""Signals to running trainings: all ranks notice, also while they wait in MPI, and what they leave is whole."""

import json
import os
import signal
import subprocess
import sys
import time
import weakref
from contextlib import suppress
from pathlib import Path

import pytest

from mpitrain import checkpoint
from mpitrain.signals import ECHO_OF_INTERRUPT, STOPPED, interruptible
from tests.faults import Fault, program

RANKS = 3
MPIRUN = Path(sys.executable).with_name("mpirun")
ALGORITHMS = ("asgd", "easgd", "eamsgd-sync", "hybrid", "sparse-delta", "allreduce")
pytestmark = pytest.mark.skipif(not MPIRUN.exists(), reason="this environment has no mpirun of its own")


def started(folder: Path, seconds: float, *settings: str) -> "subprocess.Popen[str]":
    """The program of three ranks, once rank 1 takes its time."""
    slow = program(
        Fault("", ["pid pid-{rank}"]),
        Fault("mpitrain.signals.Stop._handle", ["touch heard-{rank}"], after=True),
        Fault("mpitrain.training.gradients.Learner.load", ["touch waits", f"sleep {seconds}"], rank=1, call=19),
    )
    sets = [word for each in ("training.epochs=100000", "run.evaluate_every=0", *settings) for word in ("--set", each)]
    command = [str(MPIRUN), "-n", str(RANKS), sys.executable, *slow, *sets, "--out", "run"]
    pipe, environment = subprocess.PIPE, {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )
    await_file(folder / "waits", process)
    return process


def await_file(path: Path, process: "subprocess.Popen[str]") -> None:
    """Until it is there; a program that ends before is a failure."""
    end = time.monotonic() + 90
    while not path.exists():
        if time.monotonic() > end or process.poll() is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            pytest.fail(f"no {path.name}:\n{process.communicate()}")
        time.sleep(0.05)


def ended_within(process: "subprocess.Popen[str]", seconds: float) -> str:
    """Standard error of a program that ends; kills it and fails when it takes longer."""
    try:
        return process.communicate(timeout=seconds)[1]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail(f"still running after {seconds} s")


def tell(folder: Path, rank: int, number: int = signal.SIGTERM) -> None:
    """A signal to one rank."""
    os.kill(int((folder / f"pid-{rank}").read_text()), number)


@pytest.mark.parametrize(("name", "signalled"), [("asgd", 0), *((name, 2) for name in ALGORITHMS)])
def test_one_rank_that_is_told_while_it_waits_ends_all(tmp_path: Path, name: str, signalled: int) -> None:
    """Rank 1 takes two seconds over a minibatch; with `asgd`, a round would take hours, were its worker not told."""
    rounds = ("algorithm.minibatches=1000000",) if name == "asgd" else ()
    process = started(tmp_path, 2.0, f"algorithm.name={name}", *rounds)
    tell(tmp_path, signalled)
    err = ended_within(process, 60)
    told = json.loads((tmp_path / "run" / "summary.json").read_text())
    found, torn = checkpoint.newest(tmp_path / "run" / "checkpoints")
    assert process.returncode == STOPPED and "Traceback" not in err, err
    assert told["exit_reason"] == "stopped" and found is not None
    assert (found.name, torn) == (f"{told['samples']:012d}", [])


def test_repetitions_of_a_signal_change_nothing_until_the_process_is_gone(tmp_path: Path) -> None:
    """Python restores the default of each signal when it begins to end."""
    words = ["-m", "mpitrain", "--set", "training.epochs=100000", "--set", "run.evaluate_every=0", "--out", "run"]
    kept = {"cwd": tmp_path, "stdout": subprocess.DEVNULL, "start_new_session": True}
    with subprocess.Popen([sys.executable, *words], **kept) as process:
        await_file(tmp_path / "run" / "metrics.jsonl", process)
        end = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < end:
            process.send_signal(signal.SIGUSR1)
            time.sleep(0.02)
        process.kill()  # if it has not ended
    assert process.returncode == STOPPED


def test_a_rank_without_work_waits_for_ever_and_passes_on_its_signal(tmp_path: Path) -> None:
    """`sgd` is for one rank."""
    (tmp_path / "waits").touch()  # rank 1 loads nothing
    process = started(tmp_path, 0.0, "algorithm.name=sgd", "run.deadline=6")
    log, end = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 120
    while not (log.exists() and any(json.loads(line).get("seconds", 0) > 7 for line in log.read_text().splitlines())):
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.2)
    tell(tmp_path, 2)
    ended_within(process, 60)
    assert process.returncode == STOPPED


@pytest.mark.parametrize("name", ["allreduce", "asgd"])
def test_a_second_signal_ends_at_once(tmp_path: Path, name: str) -> None:
    """Although rank 1 takes ten minutes over a minibatch, and the others wait for it in MPI."""
    process = started(tmp_path, 600.0, f"algorithm.name={name}")
    tell(tmp_path, 0, signal.SIGINT)
    await_file(tmp_path / "heard-0", process)
    time.sleep(ECHO_OF_INTERRUPT + 0.5)
    tell(tmp_path, 0, signal.SIGINT)
    ended_within(process, 60)
    assert process.returncode != 0


def test_a_signal_in_the_last_evaluation_ends_it(tmp_path: Path) -> None:
    """All is trained and saved, but not evaluated, and said to be so; a resume evaluates it."""
    waits = program(
        Fault("mpitrain.signals.Stop._handle", ["touch heard"], after=True),
        Fault("mpitrain.monitoring.evaluation.Evaluation.step", ["touch evaluates", "await heard"]),
    )
    sets = [word for each in ("training.epochs=1", "run.evaluate_every=0") for word in ("--set", each)]
    command = [str(MPIRUN), "-n", str(RANKS), sys.executable, *waits]
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [*command, *sets, "--out", "run"], cwd=tmp_path, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )
    await_file(tmp_path / "evaluates", process)
    process.send_signal(signal.SIGTERM)
    err = ended_within(process, 60)
    told = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert process.returncode == STOPPED, err
    assert (told["samples"], told["exit_reason"], told["test_error"]) == (1438, "stopped", None)
    again = [*command, "--resume", "run"]
    assert subprocess.run(again, cwd=tmp_path, capture_output=True, timeout=120).returncode == 0
    told = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert told["exit_reason"] == "finished" and told["test_error"] < 0.9


def test_an_interrupt_within_a_callback_is_not_dropped() -> None:
    """Python drops what a weak reference's callback raises; it has printed a traceback, and the command went on."""

    class Thing:
        pass

    thing = Thing()
    reference = weakref.ref(thing, lambda gone: signal.raise_signal(signal.SIGINT))
    former = signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore it for jobs in the background
    try:
        with pytest.raises(KeyboardInterrupt), interruptible():
            del thing
            time.sleep(60)
    finally:
        signal.signal(signal.SIGINT, former)
    assert reference() is None
