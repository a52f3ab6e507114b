"""Stale gradients: the limit of Ringmaster ASGD, gap-aware penalties, DANA, 1/(1 + staleness)."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpitrain.algorithms.optimizers import plain
from mpitrain.algorithms.optimizers.sgd import classical, look_ahead
from mpitrain.algorithms.roles import Merge
from mpitrain.algorithms.server import Asgd, ServerRule
from mpitrain.algorithms.staleness import GapAware, penalise

SHORT = ("--set", "training.epochs=1", "--set", "run.progress=none", "--set", "run.threads=1")


def test_a_penalty_by_hand() -> None:
    """q starts at 0: after the first update, √q/√(1 − 0.999) is |g|, and C = 0.5·|g|."""
    g, now, then = np.array([2.0, -4.0, 0.0]), np.array([1.0, 1.0, 1.0]), np.array([1.0, -1.0, 0.0])
    squares, out, scratch = np.zeros(3), np.empty(3), np.empty(3)
    penalise(g, now, then, squares, out, scratch, unit=0.5 / 0.001**0.5)
    np.testing.assert_allclose(squares, [0.004, 0.016, 0.0])
    np.testing.assert_allclose(out, [2.0, -4.0 / (1 + 2 / 2), 0.0])  # C = 1, 2, 0; gaps 0, 2, 1


def test_gap_aware_without_a_gap_is_the_servers_rule() -> None:
    plainly, aware = ServerRule(0.9, 1.0, plain), GapAware(ServerRule(0.9, 1.0, plain), plain)
    draw, scratch = np.random.default_rng(3), np.empty(30)
    vectors = {name: np.zeros(30) for name in ("theta", "velocity", "squares", "seen")}
    other = {name: np.zeros(30) for name in ("theta", "velocity")}
    for t in range(20):
        g = draw.normal(size=30)
        vectors["seen"][:] = vectors["theta"]
        at = Merge(0.1, 0, t, highest=0.1)
        aware.merge(vectors, g, scratch, at)
        plainly.merge(other, g, scratch, at)
    np.testing.assert_allclose(vectors["theta"], other["theta"], rtol=1e-12)


def test_inverse_divides_by_one_more_than_the_staleness() -> None:
    rule, vectors = ServerRule(0.0, 1.0, plain, inverse=True), {"theta": np.array([10.0])}
    for stale, expected in ((0, 6.0), (3, 5.0)):
        rule.merge(vectors, np.array([8.0]), np.empty(1), Merge(0.5, stale, 5))
        assert vectors["theta"][0] == expected


def test_dana_by_its_definition() -> None:
    """Θ ← Θ + v_w, v_w ← μv_w − ηg, and workers get Θ + μ Σ_w v_w."""
    options = Asgd(staleness="dana", momentum=0.5)
    theta, mine = np.array([1.0, 2.0]), {"theta": np.array([1.0, 2.0]), "velocity": np.zeros(2)}
    v, own = np.zeros((3, 2)), [options.of_worker(mine, 3) for _ in range(3)]
    rule, draw = options.master(plain), np.random.default_rng(1)
    for worker in (0, 1, 2, 0, 0, 2, 1, 1):
        g = draw.normal(size=2)
        v[worker] = 0.5 * v[worker] - 0.25 * g
        theta += v[worker]
        rule.merge(mine | own[worker], g, np.empty(2), Merge(0.25, 1, 0))
        np.testing.assert_allclose(mine["theta"], theta + 0.5 * v.sum(axis=0), rtol=1e-12)
        np.testing.assert_allclose(options.model(mine), theta, rtol=1e-12)
    np.testing.assert_allclose(mine["velocity"], v.sum(axis=0), rtol=1e-12)


def test_dana_with_one_worker_is_nesterov() -> None:
    options, curvature = Asgd(staleness="dana", momentum=0.9), np.random.default_rng(3).uniform(0.5, 2, size=20)
    x, v, look, scratch = np.ones(20), np.zeros(20), np.empty(20), np.empty(20)
    vectors = {"theta": np.ones(20), "velocity": np.zeros(20)}
    rule, own = options.master(plain), options.of_worker(vectors, 1)
    for t in range(100):
        look_ahead(look, x, v, 0.9)
        np.testing.assert_allclose(vectors["theta"], look, atol=1e-13)
        classical(x, v, curvature * look, scratch, eta=0.1, mu=0.9)
        rule.merge(vectors | own, curvature * vectors["theta"], scratch, Merge(0.1, 0, t))
        np.testing.assert_allclose(options.model(vectors), x, atol=1e-13)


def test_a_resume_divides_the_velocities_of_dana_equally() -> None:
    vectors = {"theta": np.ones(2), "velocity": np.array([6.0, -3.0])}
    assert Asgd(staleness="dana", momentum=0.9).of_worker(vectors, 3)["own"].tolist() == [2.0, -1.0]


def trained(simulated: Callable[..., Any], run: str, ranks: int, *keys: str) -> tuple[dict[str, Any], Any]:
    """The summary of a training, and how it ended."""
    ended = simulated(ranks, *SHORT, *(word for key in keys for word in ("--set", key)), "--out", run)
    assert ended.status == 0, ended.err
    return json.loads(Path(run, "summary.json").read_text()), ended


def test_a_limit_that_nothing_reaches_changes_no_bit(
    simulated: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    keys = ("algorithm.name=asgd", "algorithm.momentum=0.5")
    first, _ = trained(simulated, "plain", 4, *keys)
    second, ended = trained(simulated, "limited", 4, *keys, "algorithm.stale_limit=1000000")
    assert first["parameters_sha256"] == second["parameters_sha256"]
    assert second["samples_dropped"] == 0 and "dropped" not in ended.err


def test_what_is_dropped_is_counted_and_trained_on_again(
    simulated: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In turn order three workers' gradients are two updates old, once each has one: every other is dropped."""
    monkeypatch.chdir(tmp_path)
    keys = ("algorithm.name=asgd", "algorithm.order=round-robin", "algorithm.stale_limit=2", "run.progress=plain")
    summary, ended = trained(simulated, "run", 4, *keys)
    assert summary["samples"] == 1438 and summary["staleness_max"] == 1
    assert summary["samples_dropped"] >= 1438 // 3
    assert f"gradients of {summary['samples_dropped']:,} samples" in ended.out + ended.err
    assert ended.out.count("algorithm.stale_limit = 2 is below the number of workers, 3") == 1


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        (("algorithm.staleness=dana",), "algorithm.momentum is 0"),
        (("algorithm.staleness=inverse", "algorithm.gradient_decay=0.9"), "algorithm.gradient_decay"),
        (
            ("algorithm.staleness=dana", "algorithm.momentum=0.5", "stages=[{at=0.5, workers=2}]"),
            "stages: workers and momentum",
        ),
    ],
)
def test_what_does_not_fit(simulated: Callable[..., Any], keys: tuple[str, ...], line: str) -> None:
    ended = simulated(3, *SHORT, *(word for key in ("algorithm.name=asgd", *keys) for word in ("--set", key)))
    assert ended.status == 2 and ended.err.count("\n") == 1 and line in ended.err, ended.err
