"""AdamW in launched trainings: it learns, and its moments and its count of steps survive a resume to the bit."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def settings(*keys: str) -> list[str]:
    """Each key=value after its --set."""
    return [word for key in keys for word in ("--set", key)]


@pytest.mark.parametrize(
    ("ranks", "keys"),
    [
        (2, ("algorithm.name=allreduce",)),
        (3, ("algorithm.name=easgd", "algorithm.order=round-robin")),
        (2, ("algorithm.name=easgd-sync",)),
    ],
    ids=["allreduce", "easgd", "easgd-sync"],
)
def test_a_resumed_training_has_the_bits_of_an_uninterrupted_one(
    simulated: Callable[..., Any], tmp_path: Path, ranks: int, keys: tuple[str, ...]
) -> None:
    common = settings(*keys, "algorithm.optimizer.name=adamw", "run.evaluate_every=0")
    for arguments in (
        ("--out", "whole", *common, *settings("training.epochs=3")),
        ("--out", "parts", *common, *settings("training.epochs=2")),
        ("--resume", "parts", *settings("training.epochs=3")),
    ):
        ended = simulated(ranks, *arguments)
        assert ended.status == 0, ended.err
    whole, parts = (json.loads((tmp_path / run / "summary.json").read_text()) for run in ("whole", "parts"))
    assert whole["parameters_sha256"] == parts["parameters_sha256"]
    assert whole["test_error"] < 0.1


@pytest.mark.parametrize("name", ["easgd", "easgd-sync"])
def test_workers_with_another_optimizer_start_at_the_centre(simulated: Callable[..., Any], name: str) -> None:
    """They have no moments yet, and cannot use what they kept of the other optimizer."""
    keys = settings(f"algorithm.name={name}", "run.evaluate_every=0", "training.learning_rate=0.005")
    for arguments in (
        ("--out", "run", *keys, *settings("training.epochs=1")),
        ("--resume", "run", *settings("algorithm.optimizer.name=adamw", "training.epochs=2")),
        ("--resume", "run", *settings("training.epochs=3")),
    ):
        ended = simulated(2, *arguments)
        assert ended.status == 0, ended.err
