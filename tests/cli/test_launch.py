"""`mpitrain launch`: ranks that are started again when one is lost, and only then."""

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mpitrain.__main__ import main

from ..faults import Fault, program

#: A launcher that notes each start, and then does what a test wants: $1 is the number of ranks.
NOTED = """#!/bin/sh
echo "$@" >> starts
"""


@pytest.fixture
def starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Launch two ranks with a shell script's lines for a launcher; the command line of each start."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mpitrain.cli.launch.PAUSE", 0.0)

    def launched(lines: str, *words: str, status: int) -> list[str]:
        Path("launcher").write_text(NOTED + lines)
        given = ("--out", "run") if "--resume" not in words else ()
        assert main(["launch", "-n", "2", "--launch", "sh launcher {ranks}", *given, *words]) == status
        return Path("starts").read_text().splitlines()

    return launched


@pytest.mark.parametrize("status", [0, 2, 75])
def test_an_end_of_its_own_is_the_end(starts: Callable[..., list[str]], status: int) -> None:
    """Finished, bad input, stopped by a signal. The words of the command line are the training's."""
    (line,) = starts(f"exit {status}", "net.toml", "--set", "a.b=1", "--set", "c=2", status=status)
    assert line == f"2 {sys.executable} -m mpitrain train net.toml --set a.b=1 --set c=2 --out run"


def test_a_run_that_diverged_is_not_started_again(starts: Callable[..., list[str]]) -> None:
    """Nor one that ended in another way that its summary tells."""
    assert len(starts('mkdir run; echo \'{"exit_reason": "diverged"}\' > run/summary.json; exit 1', status=1)) == 1


def test_a_rank_that_is_lost_after_the_end_changes_nothing(starts: Callable[..., list[str]]) -> None:
    """The training has finished, whatever the launcher says."""
    assert len(starts('mkdir run; echo \'{"exit_reason": "finished"}\' > run/summary.json; exit 9', status=0)) == 1


def test_an_older_summary_says_nothing(starts: Callable[..., list[str]]) -> None:
    """That of a run which was stopped, and has been taken up again, does not keep a lost rank from being noticed."""
    Path("run").mkdir()
    Path("run/summary.json").touch()
    first, *others = starts("exit 137", "--resume", "run", status=1)
    assert first.endswith("train --resume run") and len(others) == 2


def test_starts_without_progress_come_to_an_end(
    starts: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Three, of which the later ones go on in the run folder."""
    lines = starts("exit 137", status=1)
    assert [line.split()[-2:] for line in lines] == [["--out", "run"], ["--continue", "run"], ["--continue", "run"]]
    told = capsys.readouterr().err.splitlines()
    assert (
        told[0] == "mpitrain: a rank was lost (exit status 137); the training begins anew: there is no checkpoint yet"
    )
    assert told[-1] == "mpitrain: 3 starts in a row left no new checkpoint; see what they said" and len(told) == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-n", "0"), "-n: at least 1 rank, not 0"),
        (("-n", "2", "--launch", "mpirun"), "{ranks}"),
        (("-n", "2", "--launch", "'mpirun -n {ranks}"), "--launch 'mpirun -n {ranks}: No closing quotation"),
    ],
)
def test_wrong_words(words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is started."""
    assert main(["launch", *words]) == 2 and said in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_rank_costs_what_came_after_the_checkpoint(
    run_command: Callable[..., Any], tmp_path: Path, number: int
) -> None:
    """One that is killed, one that is frozen: once, in the second of three epochs."""
    fault = Fault("mpitrain.training.gradients.Learner.load", [f"lose {number}"], rank=1, call=80)
    mpirun = Path(sys.executable).with_name("mpirun")
    if not mpirun.exists():
        pytest.skip("this environment has no mpirun of its own")
    again = f'shift 4; [ -e lost ] && exec {mpirun} -n 2 {sys.executable} -m mpitrain "$@"'
    faulty = f"exec {mpirun} -n 2 {sys.executable} {program(fault)[0]} '{program(fault)[1]}' \"$@\""
    (tmp_path / "launcher").write_text(f"{NOTED}{again}\n{faulty}\n")
    keys = ["algorithm.name=allreduce", "training.epochs=3", "training.minibatch=16", "run.checkpoint_samples=512"]
    words = [word for key in (*keys, "run.deadline=8", "run.evaluate_every=1") for word in ("--set", key)]
    launch = [sys.executable, "-m", "mpitrain", "launch", "-n", "2", "--launch", "sh launcher {ranks}"]
    ended = run_command([*launch, *words, "--out", "run"], 200)
    assert ended.status == 0, ended.err
    assert "a rank was lost (exit status" in ended.err and "the training goes on after" in ended.err
    told = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert told["exit_reason"] == "finished" and told["samples"] == 3 * 1438
    records = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    first, second = (each for each in records if each["event"] == "start")
    assert first["samples"] == 0 < second["samples"] and second["resumed"]
    assert len((tmp_path / "starts").read_text().splitlines()) == 2
