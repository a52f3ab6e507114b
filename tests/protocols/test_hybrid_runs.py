"""Whole runs of the program with hybrid parallelism."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HYBRID = ("--set", "algorithm.name=hybrid", "--set", "run.progress=none")


def test_resumes_with_other_ranks_and_as_plain_sgd(simulated: Callable[..., Any], tmp_path: Path) -> None:
    assert simulated(2, "--out", "run", *HYBRID, "--set", "training.epochs=2").status == 0
    assert simulated(3, "--resume", "run", "--set", "training.epochs=3").status == 0
    first = json.loads((tmp_path / "run/summary.json").read_text())
    assert (first["ranks"], first["samples"], first["algorithm"]) == (3, 3 * 1438, "hybrid")
    ended = simulated(1, "--resume", "run", "--set", "algorithm.name=msgd", "--set", "training.epochs=4")
    assert ended.status == 0, ended.err
    last = json.loads((tmp_path / "run/summary.json").read_text())
    assert last["algorithm"] == "msgd"
    assert last["test_error"] < 0.1


def test_summary_counts_bytes_by_kind(simulated: Callable[..., Any], tmp_path: Path) -> None:
    ended = simulated(2, "--out", "run", *HYBRID, "--set", "training.epochs=1", "--set", "algorithm.scheme=c")
    assert ended.status == 0, ended.err
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    kinds = summary["bytes_by_kind"]
    # Each example's 512 activations go to the other rank, and as many gradients come back; float32.
    assert kinds["activations"] == kinds["activation_gradients"] == 4 * 512 * summary["samples"]
    assert kinds["conv_gradients"] == 4 * 2 * 4800 * summary["updates"]
    assert sum(kinds.values()) < summary["bytes_received"]  # the rest: weights for the master
    assert 0 <= summary["communication_hidden"] <= 1


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        (("model.preset=zhang2013-dnn",), "convolutional"),
        (("algorithm.scheme=b", "algorithm.group=2"), "algorithm.group"),
        (("training.rate_per=sample",), "training.rate_per"),
        (("model.width=0.01",), "too few for 2 ranks"),
    ],
)
def test_bad_input(simulated: Callable[..., Any], settings: tuple[str, ...], word: str) -> None:
    ended = simulated(2, "--out", "run", *HYBRID, *(part for each in settings for part in ("--set", each)))
    assert ended.status == 2
    assert word in ended.err
    assert sum(line.startswith("mpitrain:") for line in ended.err.splitlines()) == 1
    assert "Traceback" not in ended.err


def test_a_resumed_run_ends_with_the_bits_of_an_uninterrupted_one(
    simulated: Callable[..., Any], tmp_path: Path
) -> None:
    scheme = ("--set", "algorithm.scheme=c", "--set", "algorithm.fc_batch=sub")
    assert simulated(2, "--out", "whole", *HYBRID, *scheme, "--set", "training.epochs=2").status == 0
    assert simulated(2, "--out", "cut", *HYBRID, *scheme, "--set", "training.epochs=1").status == 0
    assert simulated(2, "--resume", "cut", "--set", "training.epochs=2").status == 0
    hashes = [
        json.loads((tmp_path / name / "summary.json").read_text())["parameters_sha256"] for name in ("whole", "cut")
    ]
    assert hashes[0] == hashes[1]


@pytest.mark.parametrize("scheme", ["a", "b", "c"])
@pytest.mark.parametrize("fc_batch", ["full", "sub"])
def test_defaults_train_the_digits(simulated: Callable[..., Any], tmp_path: Path, scheme: str, fc_batch: str) -> None:
    """Under 10 % test error by the defaults."""
    settings = ("--set", f"algorithm.scheme={scheme}", "--set", f"algorithm.fc_batch={fc_batch}")
    assert simulated(3, "--out", "run", *HYBRID, *settings).status == 0
    assert json.loads((tmp_path / "run/summary.json").read_text())["test_error"] < 0.1
