"""`model.seed`: one initial point for runs whose samples come in different orders."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize(("ranks", "algorithm"), [(1, "sgd"), (2, "block-momentum")])
def test_runs_start_from_one_point(simulated: Callable[..., Any], tmp_path: Path, ranks: int, algorithm: str) -> None:
    """With a rate that rounds to nothing the initial weights are left; with another they part."""

    def hash_of(name: str, *settings: str) -> str:
        words = (f"algorithm.name={algorithm}", "training.epochs=0.3", "run.evaluate_every=0", *settings)
        ended = simulated(ranks, *(word for each in words for word in ("--set", each)), "--out", name)
        assert ended.status == 0, ended.err
        return str(json.loads((tmp_path / name / "summary.json").read_text())["parameters_sha256"])

    still, seed = "training.learning_rate=1e-60", "model.seed=5"
    first = hash_of("first", still, seed, "training.seed=1")
    assert hash_of("second", still, seed, "training.seed=2") == first
    assert hash_of("third", still, "training.seed=5") == first
    assert hash_of("moved1", seed, "training.seed=1") != hash_of("moved2", seed, "training.seed=2")
