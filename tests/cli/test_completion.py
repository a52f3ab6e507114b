"""Completion in the shell, by argcomplete: what a shell asks, and what it is told."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PARTS = {"--set algorithm.optimizer.name=": "adamw lion momentum nesterov sgd", "--set run.trace=": "false true"}
PARTS |= {"--set training.schedule=": "constant cosine linear", "net.toml --set model.preset=d": "digits-cnn"}


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("rep", ["report"]),
        ("report --fo", ["--format"]),
        ("report --format ", ["png", "svg"]),
        ("prepare ka", ["kaldi"]),
        ("prepare kaldi --al", ["--alignments"]),
        ("--pri", ["--print-config"]),
        ("--set training.sch", ["training.schedule="]),
        ("describe --set algorithm.tau", ["algorithm.tau="]),
        *(
            (typed, [f"{typed.split()[-1].partition('=')[0]}={each}" for each in values.split()])
            for typed, values in PARTS.items()
        ),
    ],
)
def test_commands_options_keys_and_values_are_completed(tmp_path: Path, typed: str, found: list[str]) -> None:
    pytest.importorskip("argcomplete", reason="the extra mpitrain[completion] is not installed")
    line, out = f"python -m mpitrain {typed}", tmp_path / "out"
    asked = {"COMP_LINE": line, "COMP_POINT": str(len(line)), "COMP_TYPE": "9", "_ARGCOMPLETE": "3"}
    asked |= {"_ARGCOMPLETE_STDOUT_FILENAME": str(out), "_ARGCOMPLETE_SUPPRESS_SPACE": "1", "_ARGCOMPLETE_IFS": "\n"}
    ended = subprocess.run([sys.executable, "-m", "mpitrain"], env={**os.environ, **asked}, timeout=60)
    assert ended.returncode == 0 and out.read_text().split("\n") == found


def test_the_shell_finds_that_the_program_completes() -> None:
    """By a word at the beginning of its file."""
    assert "PYTHON_ARGCOMPLETE_OK" in Path(sys.modules["mpitrain"].__path__[0], "__main__.py").read_text()[:1024]
