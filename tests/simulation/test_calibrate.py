"""The file that `calibrate` measures, and that `simulate` reads."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpitrain.simulation.calibrate import line, spread
from mpitrain.simulation.cluster import read


def test_the_line_goes_through_the_medians() -> None:
    """2 s and 0.5 s a sample, with one time in three too long at each size."""
    samples = np.repeat([16.0, 32.0, 64.0], 3)
    seconds = (2 + 0.5 * samples) * np.tile([1.0, 1.0, 3.0], 3)
    assert line(samples, seconds) == pytest.approx((2.0, 0.5))
    assert spread(samples, seconds, 2.0, 0.5)[::10] == [1.0, 1.0, 3.0]


def test_a_gradient_never_takes_negative_time() -> None:
    """Where larger minibatches are dearer than in proportion, and where only one was measured."""
    assert line(np.array([10.0, 20.0]), np.array([1.0, 4.0])) == pytest.approx((0.0, 90 / 500))
    assert line(np.array([10.0, 20.0]), np.array([4.0, 1.0])) == pytest.approx((0.0, 60 / 500))
    assert line(np.array([8.0, 8.0]), np.array([2.0, 2.0])) == pytest.approx((0.0, 0.25))


def test_what_is_measured_can_be_simulated(launch: Callable[..., Any], tmp_path: Path) -> None:
    """On two ranks of one node. A second calibration does not overwrite the first."""
    command = ("calibrate", "measured.toml", "--set", "training.minibatch=8", "--set", "run.threads=1")
    ended = launch(2, *command)
    assert ended.status == 0, ended.err
    text = (tmp_path / "measured.toml").read_text()
    assert ended.out.replace("\r", "") == text
    assert "38,282 parameters" in text and "the link between nodes was not measured" in text
    found = read(tmp_path / "measured.toml")
    assert (found.nodes, found.ranks_per_node) == (1, 2)
    assert found.within_node.bandwidth > 1e6 and 0 < found.within_node.latency < 1
    assert found.gradient.seconds_per_sample > 0 and len(tomllib.loads(text)["gradient"]["spread"]) == 21
    assert all(1e-13 < each.seconds_per_byte < 1e-6 for each in (found.update, found.copy))
    assert found.evaluation.seconds_per_sample > 0
    ended = launch(2, *command)
    assert ended.status == 2 and ended.err.count("measured.toml: is there already") == 1
    keys = ("--set", "training.epochs=0.1", "--set", "algorithm.name=allreduce", "--out", "run")
    assert launch(1, "simulate", "--cluster", "measured.toml", *keys).status == 0
    ended = launch(2, "calibrate", "other.toml", "--set", "model.width=-1")
    assert ended.status == 2 and ended.err.count("model.width") == 1 and not (tmp_path / "other.toml").exists()
