"""Block momentum that waits for nobody: delayed Nesterov momentum, and workers of unequal speed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpitrain.algorithms.block_momentum import BlockMomentum
from mpitrain.algorithms.delayed import DelayedMomentum
from mpitrain.algorithms.optimizers.outer import OuterMomentum
from mpitrain.algorithms.roles import Merge
from mpitrain.errors import BadInput
from mpitrain.protocols.server.merging_master import Speeds

SHORT = ("training.epochs=2", "run.progress=none", "run.threads=1", "algorithm.name=block-momentum", "algorithm.tau=4")


def test_two_workers_by_hand() -> None:
    """ζ = 1, μ = ½, N = 2; u = μζv. Δ = 4: Θ = 10 − 2 = 8. Δ = 2: Θ = 7, S = −3, u = −1.5, Θ = 5.5.

    Δ = −2: Θ = 6.5. Δ = 0: Θ = 6.5, S = 1, u = ½(−1.5 + 1) = −0.25, Θ = 6.25.
    """
    rule = DelayedMomentum(0.5, 1.0, "step", weighs=False)
    vectors, seen = {"theta": np.array([10.0]), "velocity": np.zeros(1), "moved": np.zeros(1)}, []
    for t, delta in enumerate((4.0, 2.0, -2.0, 0.0)):
        rule.merge(vectors, np.array([delta]), np.empty(1), Merge(0.1, 0, t, workers=2))
        seen.append((float(vectors["theta"][0]), float(vectors["velocity"][0]), float(vectors["moved"][0])))
    assert seen == [(8, 0, -2), (5.5, -1.5, 0), (6.5, -1.5, 1), (6.25, -0.25, 0)]


@pytest.mark.parametrize("ahead", ["none", "start", "step"])
def test_one_worker_is_block_momentum(ahead: Any) -> None:
    """Where N = 1 nothing is delayed: Θ, and where the ranks start, are those of the outer optimizer."""
    options = BlockMomentum(order="free", momentum=0.6, rate=0.8, look_ahead=ahead)
    outer, theta, v, start = OuterMomentum(0.6, 0.8, ahead, False), np.ones(5), np.zeros(5), np.empty(5)
    vectors = {"theta": np.ones(5), "velocity": np.zeros(5), "moved": np.zeros(5)}
    draw = np.random.default_rng(4)
    for t in range(30):
        outer.start(start, theta, v)
        np.testing.assert_allclose(vectors["theta"], start, rtol=1e-12)
        np.testing.assert_allclose(options.model(vectors), theta, rtol=1e-12)
        steps = draw.normal(size=5)
        outer.step(theta, v, start + steps, np.empty(5), 0.1)
        options.master(lambda rule: rule).merge(vectors, -steps, np.empty(5), Merge(0.1, 0, t))


def test_a_share_of_the_samples_weighs_as_much() -> None:
    rule = DelayedMomentum(0.0, 1.0, "none", weighs=True)
    vectors = {name: np.zeros(1) for name in ("theta", "velocity", "moved")}
    rule.merge(vectors, np.array([8.0]), np.empty(1), Merge(0.1, 0, 0, workers=2, share=0.25))
    assert vectors["theta"][0] == -1.0


def test_steps_follow_speeds() -> None:
    steps_of = BlockMomentum(order="free", tau=10).steps_of
    assert [steps_of(speed, 2.0) for speed in (2.0, 1.0, 0.5, 0.01)] == [10, 5, 2, 1]
    assert steps_of(0.3, 1.0) == 3  # 10·0.3 is a little less than 3


def test_speeds() -> None:
    """The best of the last rounds; workers of whom nothing is known count as the fastest."""
    now = iter([0.0, 10.0, 10.0, 12.0, 12.0, 62.0, 100.0])
    pace = Speeds((), lambda: next(now), [1, 2])
    assert pace.of(2) == (1.0, 1.0)
    for _ in range(3):
        pace.began(1)
        pace.ended(1, 20)
    assert pace.of(1) == (10.0, 10.0) and pace.of(2) == (10.0, 10.0)
    assert Speeds((1.0, 0.5), lambda: 0.0, [1, 2, 3]).of(2) == (0.5, 1.0)


def test_one_worker_trains_as_block_momentum_on_one_rank(
    simulated: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through whole trainings, with a momentum optimizer, whose buffers are kept from round to round."""
    monkeypatch.chdir(tmp_path)
    keys = ("algorithm.look_ahead=step", "algorithm.momentum=0.5", "training.optimizer=nesterov")
    losses = []
    for order in ("together", "free", "round-robin"):
        words = (*SHORT, *keys, f"algorithm.order={order}", "training.dtype=float64", "training.minibatch=24")
        ended = simulated(1, *(word for key in words for word in ("--set", key)), "--out", order)
        assert ended.status == 0, ended.err
        losses.append(json.loads(Path(order, "summary.json").read_text())["test_loss"])
    # the last average together comes after fewer than τ steps, with less momentum
    assert losses[1] == losses[2] == pytest.approx(losses[0], rel=1e-9)  # τ divides the 60 minibatches of an epoch


def test_slow_workers_take_fewer_steps(
    simulated: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given speeds in turn order: 45 minibatches an epoch are handed out as 4, 2, 1, 4, 2, 1, …"""
    monkeypatch.chdir(tmp_path)
    words = (*SHORT, "algorithm.order=round-robin", "algorithm.speeds=[1.0, 0.5, 0.25]", "training.minibatch=32")
    ended = simulated(4, *(word for key in words for word in ("--set", key)), "--out", "run")
    told = json.loads(Path("run", "summary.json").read_text())
    assert ended.status == 0 and told["samples"] == 2 * 1438
    assert told["updates"] == 39  # six turns of 4 + 2 + 1 in each epoch, and 3 that the first has left; then 2 + 1


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"preset": "slowmo", "unit": "learning-rate", "order": "free"}, "algorithm.unit"),
        ({"buffers": "averaged", "order": "round-robin"}, "algorithm.buffers"),
        ({"speeds": (1.0,)}, "algorithm.speeds"),
        ({"weights": "samples"}, "algorithm.weights"),
    ],
)
def test_what_does_not_fit(keys: dict[str, Any], line: str) -> None:
    with pytest.raises(BadInput, match=line):
        BlockMomentum(**keys).check()
