"""The live line appears where a terminal is, also behind mpirun, and nowhere else."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mpitrain.monitoring.journal import Progress, seconds_text
from mpitrain.monitoring.records import rate_text
from mpitrain.report.html import show

MPIRUN = Path(sys.executable).with_name("mpirun")


@pytest.mark.parametrize("ranks", [0, 2])
def test_a_live_line_on_a_terminal(tmp_path: Path, ranks: int) -> None:
    """Standard output is a pseudo-terminal, the rank's own or mpirun's."""
    if ranks and not MPIRUN.exists():
        pytest.skip("this environment has no mpirun of its own")
    launch = [str(MPIRUN), "-n", str(ranks)] if ranks else []
    command = [*launch, sys.executable, "-m", "mpitrain", "--set", "training.epochs=60", "--out", "run"]
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, cwd=tmp_path, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    seen = b""
    while True:
        try:
            piece = os.read(ours, 1 << 16)
        except OSError:  # the other end was closed
            break
        if not piece:
            break
        seen += piece
    os.close(ours)
    assert process.wait(60) == 0
    assert re.search(rb"samples/s.* \d:\d\d:\d\d left", seen)
    assert b"\x1b[2K" in seen and "━".encode() in seen


def test_plain_lines_elsewhere(tmp_path: Path) -> None:
    """No escape codes in a pipe."""
    command = [sys.executable, "-m", "mpitrain", "--set", "training.epochs=2", "--out", "run"]
    out = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60, check=True).stdout
    assert b"epoch   2.00" in out and b"\x1b" not in out


def test_the_time_that_is_left_counts_from_the_start_of_this_program(capsys: pytest.CaptureFixture[str]) -> None:
    """Of 1000 samples 400 are left after a resume at 500; at 10 a second that takes 40 s."""
    progress = Progress("plain", 1000)
    progress._said -= 100  # seconds since the last line
    progress.update(600, 10.0, 1.0, {})
    assert capsys.readouterr().out.endswith(" 60.0%  10 samples/s  loss 1.000  0:00:40 left\n")


@pytest.mark.parametrize(("seconds", "text"), [(0.0, "0"), (0.0384, "0.038"), (1.26, "1.3"), (61.04, "61.0")])
def test_short_simulations_do_not_end_after_no_seconds(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(
    ("rate", "text"), [(0.0, "0"), (0.338, "0.34"), (3.0, "3"), (9.97, "10"), (33.8, "34"), (33853.1, "33,853")]
)
def test_slow_trainings_do_not_stand_still(rate: float, text: str) -> None:
    """In their lines and in reports."""
    assert rate_text(rate) == show(rate, "count") == text
