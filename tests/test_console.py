"""What is printed arrives as it was given."""

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from mpitrain.console import open_console, open_plain


def test_no_text_becomes_an_emoji(capsys: pytest.CaptureFixture[str]) -> None:
    """A command to copy names the folder that there is."""
    open_console(live=False).print("--resume runs/a:key:b", markup=False)
    assert capsys.readouterr().out == "--resume runs/a:key:b\n"


@pytest.mark.parametrize("columns", ["0", "1", ""])
@pytest.mark.parametrize("opened", [open_plain, partial(open_console, live=False)])
def test_lines_are_printed_whatever_the_environment_says_of_columns(
    columns: str, opened: Callable[[], Console], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With COLUMNS=0 rich prints nothing."""
    monkeypatch.setenv("COLUMNS", columns)
    opened().print("28,207 samples a second")
    assert capsys.readouterr().out == "28,207 samples a second\n"


@pytest.mark.parametrize("words", [[], ["-u"]])
def test_output_that_nobody_reads_or_that_has_no_room(words: list[str]) -> None:
    """`describe | head -1` ends as without head; on a full disk a line says it, and the status that it failed."""
    command = [sys.executable, *words, "-m", "mpitrain", "describe"]
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as pipe:
        ended = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert ended.returncode == 1
    assert ended.stderr == "mpitrain: standard output: cannot be written: No space left on device\n"


def test_the_terminal_of_a_rank_of_open_mpi_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a script or a container starts the rank: live lines came into job logs, and errors into standard output."""
    reading, writing = os.openpty()
    with open(reading, "rb"), open(writing, "w") as terminal:
        monkeypatch.setattr("sys.stdout", terminal)
        assert open_console().is_terminal
        monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
        assert not open_console().is_terminal
