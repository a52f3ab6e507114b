"""`compare` as its users start it."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from socket import gethostname
from typing import Any

import pytest

from mpitrain.__main__ import main
from mpitrain.api.launching import Relay
from mpitrain.checkpoint.lease import Lease
from mpitrain.report.benchmarks import known
from mpitrain.report.comparison import launching
from mpitrain.report.comparison.matrix import matrix
from mpitrain.signals import STOPPED

from .runs import finish

MPIRUN = Path(sys.executable).with_name("mpirun")
SETTINGS = ["training.epochs=1", "run.threads=1"]
QUICK = ["--deadline", "200", *(word for setting in SETTINGS for word in ("--set", setting))]
needs_mpirun = pytest.mark.skipif(not MPIRUN.exists(), reason="this environment has no mpirun of its own")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> list[list[str]]:
    """What --list says."""
    capsys.readouterr()
    assert main(["compare", *words, "--list"]) == 0
    return [line.split("\t") for line in capsys.readouterr().out.splitlines()]


@needs_mpirun
def test_a_matrix_is_run_once_and_one_failure_loses_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A configuration that diverges, and one with two workers; what is finished is not run again."""
    (tmp_path / "wild.toml").write_text('[algorithm]\nname = "msgd"\n[training]\nlearning_rate = 1e30\n')
    (tmp_path / "vast.toml").write_text('[algorithm]\nname = "msgd"\n[training]\nlearning_rate = 1000.0\n')
    target = ["--target-error", "0.9,0.0001"]
    words = ["wild.toml", "allreduce", "vast.toml", "--workers", "2", *target, "--out", "out", *QUICK]
    assert main(["compare", *words]) == 1
    out = capsys.readouterr().out
    assert "wild-w1-s1: failed: " in out and "learning_rate" in out and "wild-w1-s1 (unfinished)" in out
    assert "vast-w1-s1: failed: diverged: " in out and "vast-w1-s1 (diverged)" in out
    assert [line[3] for line in listed(capsys, *words)] == ["unfinished", "finished", "diverged"]
    told = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert [(row["ranks"], row["finished"]) for row in told["rows"]] == [(1, 0), (2, 1), (1, 0)]
    assert told["rows"][1]["targets"][0]["at_most"] and told["rows"][1]["targets"][1]["seconds"] == [None]
    assert "≤: the first evaluation was already that low" in (tmp_path / "out/compare.md").read_text()
    assert "allreduce-w2-s1" in (tmp_path / "out/report.html").read_text()
    written = (tmp_path / "out/runs/allreduce-w2-s1/summary.json").stat().st_mtime_ns
    assert main(["compare", *words, "--run", "1"]) == 0
    assert "run 1 of 0 to 2  allreduce-w2-s1: finished before" in capsys.readouterr().out  # as --list counts
    assert (tmp_path / "out/runs/allreduce-w2-s1/summary.json").stat().st_mtime_ns == written
    assert main(["compare", *words, "--set", "training.minibatch=16"]) == 2
    assert "training.minibatch = " in capsys.readouterr().err


@needs_mpirun
def test_steps_of_a_job_array(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--list, --run of each element, --table before and after the last."""
    words = ["easgd", "msgd", "--workers", "2", "--target-error", "0.9", "--out", "out", *QUICK]
    assert [line[:3] for line in listed(capsys, *words)] == [["0", "easgd-w2-s1", "3"], ["1", "msgd-w1-s1", "1"]]
    finish(matrix(["easgd"], [2], [], SETTINGS, tmp_path / "out")[0], [(10, 0.5)])
    assert main(["compare", *words, "--run", "0"]) == 0
    assert main(["compare", *words, "--table"]) == 1
    assert "msgd-w1-s1 (missing)" in (tmp_path / "out" / "compare.md").read_text()
    assert main(["compare", *words, "--run", "1"]) == 0
    assert main(["compare", *words, "--table"]) == 0
    assert "missing" not in (tmp_path / "out" / "compare.md").read_text()
    assert (tmp_path / "out" / "compare.csv").read_text().count("\n") == 3
    assert main(["compare", *words, "--run", "2"]) == 2
    with pytest.raises(SystemExit):
        main(["compare", *words, "--list", "--table"])


@needs_mpirun
def test_a_signal_reaches_the_run_which_is_taken_up_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """SIGTERM, as batch systems send it: a checkpoint is left, nothing goes on; the next call resumes."""
    words = ["msgd", "--target-error", "0.5", "--out", "out", "--set", "training.epochs=100000"]
    words += ["--set", "run.evaluate_every=0", "--set", "run.threads=1"]
    command = [sys.executable, "-m", "mpitrain", "compare", *words]
    log = tmp_path / "out/runs/msgd-w1-s1/metrics.jsonl"
    for resumed in (False, True):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        end, seen = time.monotonic() + 90, f'"resumed": {str(resumed).lower()}'
        while not (log.exists() and seen in log.read_text() and '"train"' in log.read_text().split(seen)[1]):
            assert time.monotonic() < end and process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        try:
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
        assert process.returncode == STOPPED and "Traceback" not in err
        assert json.loads((log.parent / "summary.json").read_text())["exit_reason"] == "stopped"
    assert listed(capsys, *words)[0][3] == "unfinished"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_beside_the_runs_leaves_nothing(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where the data of a benchmark are made."""

    def make(scratch: Path, folder: Path) -> dict[str, str]:
        folder.mkdir()
        signal.raise_signal(number)
        return {}

    monkeypatch.setitem(known.MAKERS, "bytes", make)
    before = signal.getsignal(number)
    assert main(["compare", "allreduce", "--on", "bytes", "--launch", "false {ranks}"]) == STOPPED
    assert capsys.readouterr().err == "mpitrain: stopped by a signal; the same command continues\n"
    assert [*(tmp_path / known.FOLDER).iterdir()] == [] and signal.getsignal(number) is before


@pytest.mark.parametrize(
    "program, deadline, said",
    [
        ("import time; time.sleep(600)", "1", "no end within 1 s"),
        ("import sys; print('mpitrain: because'); print('Abort'); sys.exit(3)", "60", "failed: because"),
        ("import sys; sys.exit(3)", "60", "exit status 3"),
        ("pass", "60", "left no summary"),
    ],
)
def test_a_run_that_comes_to_nothing_is_told(
    program: str, deadline: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "launcher.py").write_text(program)
    launch = f"{shlex.quote(sys.executable)} launcher.py {{ranks}}"
    assert main(["compare", "msgd", "--target-error", "0.1", "--launch", launch, "--deadline", deadline]) == 1
    assert said in capsys.readouterr().out


MOVED = "out/runs/msgd-w1-s1.log: was moved or deleted meanwhile; --out with its new place goes on"


@pytest.mark.parametrize(
    ("program", "status", "said"),
    [
        ("mv out moved; exit 1", 1, MOVED),
        ("mkdir out/runs/msgd-w1-s2.log; exit 1", 2, "out/runs/msgd-w1-s2.log: Is a directory"),
    ],
)
def test_a_log_that_is_not_there_ends_it(
    program: str, status: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No further run begins under the former name of a folder that was moved, or where nothing can be written."""
    (tmp_path / "launcher").write_text(f"echo >> starts; {program}")
    words = ["compare", "msgd", "--target-error", "0.1", "--seeds", "1,2", "--out", "out"]
    assert main([*words, "--launch", "sh launcher {ranks}"]) == status
    assert capsys.readouterr().err == f"mpitrain: {said}\n"
    assert (tmp_path / "starts").read_text() == "\n"


def test_a_test_set_that_there_is_not_ends_it_after_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not after hours of others; as where the data have no test part at all."""
    words = ["msgd", "sgd", "--target-error", "0.9", "--test-set", "test-noisy", "--out", "out", *QUICK]
    assert main(["compare", *words]) == 2
    told = capsys.readouterr()
    assert told.err.splitlines()[-1] == "mpitrain: --test-set test-noisy: out/runs/msgd-w1-s1 has no test_noisy_error"
    assert [path.name for path in (tmp_path / "out" / "runs").glob("*/")] == ["msgd-w1-s1"]


def test_targets_of_a_figure_of_ones_own_may_be_below_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Such as a negative log-likelihood."""
    (tmp_path / "nll.toml").write_text('[data]\nimport = "data.py:build"\n')
    assert main(["compare", "nll.toml", "--target-error=-0.5,-1.25", "--list"]) == 0
    assert main(["compare", "nll.toml", "--target-error=-0.5,-inf", "--list"]) == 2
    assert "--target-error -0.5,-inf: expected numbers" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, named",
    [
        ("msgd --target-error x", "--target-error"),
        ("msgd --target-error 5", "--target-error"),
        ("msgd --target-error 0.1 --workers 0", "--workers"),
        ("msgd --target-error 0.1 --workers 2,2", "--workers"),
        ("msgd --target-error 0.1 --seeds 1,,2", "--seeds"),
        ("msgd --target-error 0.1 --deadline nan", "--deadline"),
        ("msgd --target-error 0.1 --baseline sgd", "--baseline"),
        ("msgd --target-error 0.1 --launch mpirun", "{ranks}"),
        ("msgd --target-error 0.1 --launch 'no-such-program -n {ranks}'", "no-such-program"),
        ("msgd --target-error 0.1 --set training.epoch=1", "nearest known is training.epochs"),
        ("none.toml --target-error 0.1", "none.toml"),
        ("sparse-delta --target-error 0.1 --set run.team=node", "run.team = 'node'"),
    ],
)
def test_bad_words_are_one_line(words: str, named: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["compare", *shlex.split(words)]) == 2
    told = capsys.readouterr()
    assert told.err.count("\n") == 1 and named in told.err and list(tmp_path.iterdir()) == []


def test_two_comparisons_do_not_share_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second one is refused; the table of what there is can be had, and so can a single run of it."""
    (tmp_path / "out").mkdir()
    lease = Lease(tmp_path / "out")
    words = ["compare", "msgd", "--target-error", "0.1", "--out", "out", "--launch", "false {ranks}"]
    assert main(words) == 2
    assert capsys.readouterr().err == f"mpitrain: out: in use by process {os.getpid()} on {gethostname()}\n"
    assert not (tmp_path / "out/runs").exists()
    assert main([*words, "--table"]) == 1 and main([*words, "--run", "0"]) == 1
    assert "exit status 1" in capsys.readouterr().out
    lease.release()
    assert main(words) == 1
    assert not (tmp_path / "out/in-use.json").exists()


def test_not_under_mpirun(launch: Callable[..., Any]) -> None:
    """Said once."""
    ended = launch(2, "compare", "msgd", "--target-error", "0.1")
    assert ended.status == 2 and ended.err.count("compare starts the ranks itself: start it without mpirun") == 1


def test_the_words_of_a_run(tmp_path: Path) -> None:
    (element,) = matrix(["easgd"], [4], [2], [], tmp_path / "out")
    words = launching.launched(element, "srun --mpi=pmi2 -n {ranks} --exact")
    assert words[:5] == ["srun", "--mpi=pmi2", "-n", "5", "--exact"]
    assert words[5:9] == [sys.executable, "-m", "mpitrain", "train"]
    assert words[-2:] == ["--continue", str(tmp_path / "out/runs/easgd-w4-s2")]


def test_a_folder_called_like_an_algorithm_is_no_configuration(tmp_path: Path) -> None:
    """Such as the run folder of --out msgd."""
    (tmp_path / "msgd").mkdir()
    (element,) = matrix(["msgd"], [1], [1], [], tmp_path / "out")
    assert element.config["algorithm.name"] == "msgd"


def test_each_team_is_a_worker(tmp_path: Path) -> None:
    """As in the runs' summaries: K workers of m ranks each take K times m ranks."""
    elements = matrix(["sparse-delta"], [1, 2], [], ["run.team=3"], tmp_path / "out")
    assert [(element.workers, element.ranks) for element in elements] == [(1, 3), (2, 6)]


def test_spares_come_beside_the_ranks_that_train(tmp_path: Path) -> None:
    """A run with as many ranks that train as its workers want is finished; one that lost some for good says so."""
    continued = ["run.lost_ranks=continue", "run.spares=2"]
    elements = matrix(["easgd", "msgd", "sparse-delta"], [2], [], continued, tmp_path / "out")
    assert [element.ranks for element in elements] == [5, 3, 4]
    words = [sys.executable, "-c", "pass"]
    finish(elements[0], [(10, 0.5)], ranks=3)
    assert launching.run(elements[0], words, 60, Relay()) == ""
    finish(elements[2], [(10, 0.5)], ranks=1)
    summary = elements[2].folder / "summary.json"
    summary.write_text(json.dumps(json.loads(summary.read_text()) | {"lost_ranks": [[1, 64], [1, 96], [1, 128]]}))
    said = launching.run(elements[2], words, 60, Relay())
    assert said == "ran on 1 rank, not 2: others were lost; delete its folder to run it again"


@pytest.mark.parametrize("room", ["report", "report.advice", "report.comparison"])
def test_no_mpi_is_started(room: str) -> None:
    """A process that uses MPI cannot start others that do; and login nodes may have none."""
    program = f"import sys, mpitrain.{room}.command; sys.exit('mpi4py.MPI' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0
