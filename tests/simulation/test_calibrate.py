"""The file that `calibrate` measures, and that `simulate` reads."""

import tomllib
from argparse import Namespace
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from signal import SIGSTOP
from typing import Any

import numpy as np
import pytest

from mpitrain.errors import BadInput
from mpitrain.mpi.links import USUAL, Link
from mpitrain.sampling.queue import Work
from mpitrain.simulation.calibrate import LATENCY, _in_turns, _unmeasured, bandwidth_of, doubts, line, spread
from mpitrain.simulation.cluster import MeasuredNetwork, read
from tests.faults import Fault, program


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


@pytest.mark.parametrize(
    ("text", "rate"), [("1Gbit", 1.25e8), ("100Mbit/s", 1.25e7), ("12.5GB", 1.25e10), ("8kbit", 1000.0), ("9B/s", 9.0)]
)
def test_a_bandwidth_has_its_unit(text: str, rate: float) -> None:
    """Bits and bytes, in thousands."""
    assert bandwidth_of(text) == rate


@pytest.mark.parametrize("text", ["1G", "1", "Gbit", "-1Gbit", "0Gbit", "1 Gbit", "nanGbit"])
def test_a_bandwidth_without_unit_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match=r"--bandwidth .*: expected a number and its unit, such as 1Gbit"):
        bandwidth_of(text)


def test_a_busy_machine_is_said() -> None:
    """A gradient that took more than three times as long as others, and more processes than cores."""
    assert list(doubts([0.9, 1.0, 3.0], 2.0, 2)) == []
    slow, busy = doubts([0.9, 1.0, 3.1], 2.6, 2)
    assert "3.1 times as long" in slow and "2.6 processes wanted the 2 cores" in busy


@pytest.mark.parametrize(
    ("within", "between", "bandwidth", "said"),
    [
        (USUAL, USUAL, None, []),
        (USUAL, None, None, ["between nodes was not measured, only copied"]),
        (None, USUAL, None, ["within a node was not measured, only copied"]),
        (None, USUAL, "1Gbit", ["the latency measured", "within a node was not measured, only assumed"]),
        (None, None, "1Gbit", ["the latency assumed", "within a node was not measured, only assumed"]),
        (None, None, None, [f"{where} was not measured, only assumed" for where in ("within a node", "between nodes")]),
    ],
)
def test_links_that_were_not_measured_are_said(
    within: Link | None, between: Link | None, bandwidth: str | None, said: list[str]
) -> None:
    """Where there is one to copy, copied; else assumed."""
    lines = list(_unmeasured(Namespace(nodes=None, bandwidth=bandwidth), within, between))
    assert len(lines) == len(said) and all(line.endswith(f"{what}.") for line, what in zip(lines, said, strict=True))


def test_minibatches_follow_one_another() -> None:
    """Of three sizes in turns, from the beginning again where too few samples are left."""
    first = [(work.start, work.count) for work in islice(_in_turns([2, 4, 8], 20), 6)]
    assert first == [(0, 2), (2, 4), (6, 8), (14, 2), (16, 4), (0, 8)]
    assert next(_in_turns([5], 5)) == Work(0, 0, 5, 5)


def test_nodes_and_a_network_that_are_not_there(launch: Callable[..., Any], tmp_path: Path) -> None:
    """One rank writes sixteen nodes, each a gigabit away from the others."""
    keys = ("--set", "training.minibatch=8", "--set", "run.threads=1")
    ended = launch(1, "calibrate", "wished.toml", "--nodes", "16", "--bandwidth", "1Gbit", *keys)
    assert ended.status == 0, ended.err
    found = read(tmp_path / "wished.toml")
    assert (found.nodes, found.ranks_per_node) == (16, 1)
    assert (found.between_nodes.latency, found.between_nodes.bandwidth) == (LATENCY, 1.25e8)
    text = (tmp_path / "wished.toml").read_text()
    assert "# As many nodes as --nodes says" in text and "# Between nodes the bandwidth of --bandwidth" in text
    ended = launch(2, "calibrate", "other.toml", "--nodes", "0")
    assert ended.status == 2 and ended.err.count("--nodes 0: at least 1") == 1


def test_what_is_measured_can_be_simulated(launch: Callable[..., Any], tmp_path: Path) -> None:
    """On two ranks of one node. A second calibration does not overwrite the first."""
    command = ("calibrate", "measured.toml", "--set", "training.minibatch=8", "--set", "run.threads=1")
    ended = launch(2, *command)
    assert ended.status == 0, ended.err
    text = (tmp_path / "measured.toml").read_text()
    assert ended.out.replace("\r", "") == text
    assert "the link between nodes was not measured" in text
    found = read(tmp_path / "measured.toml")
    assert (found.nodes, found.ranks_per_node) == (1, 2)
    assert found.measured == MeasuredNetwork("model.preset = 'digits-cnn'", 38_282, 116_352)
    assert found.within_node.bandwidth > 1e6 and 0 < found.within_node.latency < 1
    assert found.gradient.seconds_per_sample > 0 and len(tomllib.loads(text)["gradient"]["spread"]) == 21
    assert all(1e-13 < each.seconds < 1e-6 for each in (found.update, found.copy, found.delta, found.entries))
    assert found.evaluation.seconds > 0
    ended = launch(2, *command)
    assert ended.status == 2 and ended.err.count("measured.toml: is there already") == 1
    keys = ("--set", "training.epochs=0.1", "--set", "algorithm.name=allreduce", "--out", "run")
    assert launch(1, "simulate", "--cluster", "measured.toml", *keys).status == 0
    ended = launch(2, "calibrate", "other.toml", "--set", "model.width=-1")
    assert ended.status == 2 and ended.err.count("model.width") == 1 and not (tmp_path / "other.toml").exists()


def test_a_rank_that_stands_still_is_named_after_the_deadline_that_was_given(launch: Callable[..., Any]) -> None:
    """It was after 300 s, whatever was given, in a line that said that run.deadline sets the seconds."""
    faulty = program(Fault("mpitrain.simulation.calibrate._gradients", [f"lose {int(SIGSTOP)}"], 1))
    ended = launch(2, "calibrate", "own.toml", "--set", "run.deadline=3", program=faulty, deadline=100)
    assert ended.status == 1
    assert "rank 0: waited 3 s for rank 1 (the others' gradients); run.deadline sets the seconds" in ended.err
