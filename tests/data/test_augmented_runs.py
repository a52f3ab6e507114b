"""Whole runs with augmented images: every algorithm takes them, and ranks that share a minibatch change nothing."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

AUGMENTED = ("--set", "data.crop=6", "--set", "data.flip=true")


def _run(simulated: Callable[..., Any], ranks: int, name: str, out: Path, *settings: str) -> dict[str, Any]:
    words = [word for setting in settings for word in ("--set", setting)]
    ended = simulated(ranks, "--set", f"algorithm.name={name}", *AUGMENTED, *words, "--out", str(out))
    assert ended.status == 0, ended.err
    return json.loads((out / "summary.json").read_text())


@pytest.mark.parametrize(("name", "ranks"), [("allreduce", 3), ("hybrid", 2)])
def test_ranks_that_share_a_minibatch_draw_what_one_would(
    simulated: Callable[..., Any], tmp_path: Path, name: str, ranks: int
) -> None:
    settings = "training.epochs=0.5", "training.dtype=float64"
    whole = {"allreduce": 96, "hybrid": 64}[name]  # samples of a step, however many ranks share it
    one = _run(simulated, 1, name, tmp_path / "one", *settings, f"training.minibatch={whole}")
    more = _run(simulated, ranks, name, tmp_path / "more", *settings, f"training.minibatch={whole // ranks}")
    assert one["samples"] == more["samples"]
    assert one["test_loss"] == pytest.approx(more["test_loss"], rel=1e-9)


@pytest.mark.parametrize(
    "settings", [("asgd",), ("easgd",), ("sparse-delta",), ("downpour", "algorithm.order=round-robin")]
)
def test_every_algorithm_takes_augmented_images(
    simulated: Callable[..., Any], tmp_path: Path, settings: tuple[str, ...]
) -> None:
    name, *more = settings
    summary = _run(simulated, 3, name, tmp_path / "run", "training.epochs=2", *more)
    assert summary["exit_reason"] == "finished" and summary["test_error"] < 0.9


def test_what_the_images_do_not_have_is_one_line(simulated: Callable[..., Any]) -> None:
    for key, line in (("crop=9", "data.crop = 9: the images are 8 x 8"), ("colour_shift=0.1", "has no covariance")):
        ended = simulated(3, "--set", f"data.{key}")
        assert ended.status == 2 and line in ended.err and "Traceback" not in ended.err
