"""The stages' number of workers, over all algorithms."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from mpitrain.algorithms import ALGORITHMS
from mpitrain.config import load
from mpitrain.errors import BadInput

RANKS, ACTIVE = 4, 2
HONOURING = {"asgd", "downpour", "mdownpour", "adownpour", "mvadownpour", "easgd", "eamsgd", "sparse-delta"}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_number_of_workers_is_honoured_or_refused(tmp_path: Path, simulated: Callable, name: str) -> None:
    """As many ranks compute as the stage says; where that cannot change, one line names the key."""
    sets = [f"algorithm.name={name}", f"stages=[{{at = 0, workers = {ACTIVE}}}]"]
    if name not in HONOURING:
        with pytest.raises(BadInput, match=f"^stages: workers: .*{name}"):
            load(None, sets)
        return
    words = [word for each in (*sets, "training.epochs=0.5", "run.evaluate_every=0") for word in ("--set", each)]
    ended = simulated(RANKS, *words, "--out", str(tmp_path / "run"))
    assert ended.status == 0, ended.err
    times = json.loads((tmp_path / "run" / "summary.json").read_text())["time"]
    assert sum(each["computing"] > 0 for each in times) == ACTIVE
