"""`run.callback`: a function of the user's own that gets each record."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mpitrain import config as configuration
from mpitrain.api import shared
from mpitrain.api.options import TrainOptions
from mpitrain.api.shared import callback_of
from mpitrain.errors import Overdue
from mpitrain.monitoring.records import Metrics

LOG = """
import asyncio, json, os, random, sys
import numpy

def keep(record):
    numpy.random.rand(), random.random()
    with open("kept.jsonl", "a") as file:
        file.write(json.dumps(record) + "\\n")
    record.clear()
    os.chdir("/")

def raising(record):
    raise RuntimeError("no network\\nand more")

def leaving(record):
    raise SystemExit(3)

def interrupting(record):
    raise KeyboardInterrupt

def cancelled(record):
    raise asyncio.CancelledError("a request")

class Unsaid(Exception):
    def __str__(self):
        raise RuntimeError("no text")

def unsaid(record):
    raise Unsaid

def red(record):
    raise RuntimeError("\x1b[31mred")

def closing(record):
    sys.stdout.close()
"""
KEYS = ("--set", "training.epochs=2", "--set", "run.progress=plain", "--set", "algorithm.order=round-robin")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "log.py").write_text(LOG)
    return tmp_path


def digest(folder: Path) -> str:
    return str(json.loads((folder / "summary.json").read_text())["parameters_sha256"])


def test_it_gets_every_record_once(simulated: Callable[..., Any], folder: Path) -> None:
    """On one rank, also of a resume; the training is the same without it, and stays in its folder."""
    keys = (*KEYS, "--set", "run.callback=log.py:keep", "--set", "run.checkpoint_samples=1000")
    assert simulated(3, *KEYS, "--out", "plain").status == 0
    assert simulated(3, *keys, "--out", "run").status == 0
    assert digest(folder / "run") == digest(folder / "plain")
    assert simulated(3, "--resume", "run", "--set", "training.epochs=3").status == 0
    told = [json.loads(line) for line in (folder / "kept.jsonl").read_text().splitlines()]
    assert told == [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    assert [record["event"] for record in told].count("start") == 2 and told[-1]["event"] == "end"


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("raising", "RuntimeError: no network"),
        ("leaving", "SystemExit: 3"),
        ("interrupting", "KeyboardInterrupt: KeyboardInterrupt"),
        ("cancelled", "CancelledError: a request"),
        ("unsaid", "Unsaid: Unsaid"),
        ("red", r"RuntimeError: \x1b[31mred"),
    ],
)
def test_what_it_raises_is_said_once(simulated: Callable[..., Any], folder: Path, function: str, said: str) -> None:
    """And does not leave the other ranks waiting for the first."""
    ended = simulated(3, *KEYS, "--set", f"run.callback=log.py:{function}", "--out", "run")
    assert ended.status == 0 and len((folder / "run/metrics.jsonl").read_text().splitlines()) > 5
    assert ended.out.count("run.callback") == 1 and f"run.callback: {said}; the training" in ended.out


def test_one_that_closes_standard_output(launch: Callable[..., Any], folder: Path) -> None:
    """The other ranks waited for the first, which could not say its error."""
    ended = launch(2, *KEYS, "--set", "run.callback=log.py:closing", "--out", "run", deadline=90)
    assert ended.status == 0 and (folder / "run/summary.json").exists(), ended.err


def test_a_rank_that_is_lost_meanwhile_is_not_said_to_be_its_own_fault(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def working() -> Iterator[None]:
        yield
        raise Overdue("rank 0: waited 3 s for rank 1", [1])

    monkeypatch.setattr(shared, "agreed", lambda transport, read, key: read())
    monkeypatch.chdir(folder)
    transport: Any = SimpleNamespace(rank=0, working=working)
    config = configuration.load(None, ["run.callback=log.py:keep"])
    lines = list[str]()
    metrics = Metrics(folder / "metrics.jsonl", None, lines.append, callback_of(transport, config, TrainOptions()))
    with pytest.raises(Overdue):
        metrics.write("start")
    assert not lines and (folder / "kept.jsonl").exists()


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        ("log.py:missing", "there is no function missing in log.py"),
        ("other.py:keep", "other.py"),
        ("keep", "expected 'FILE.py:function'"),
    ],
)
def test_wrong_names(launch: Callable[..., Any], folder: Path, spec: str, line: str) -> None:
    """One line, of rank 0 alone, before anything is written."""
    ended = launch(2, "--set", f"run.callback={spec}", "--out", "run")
    assert ended.status == 2 and not (folder / "run").exists()
    said = [each for each in ended.err.splitlines() if each.startswith("mpitrain: run.callback")]
    assert len(said) == 1 and line in said[0], ended.err
