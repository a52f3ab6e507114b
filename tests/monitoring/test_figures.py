"""Figures of ranks: how they are combined, and that they arrive, from every rank, wherever a run is recorded."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mpitrain.errors import WireError
from mpitrain.monitoring import figures
from mpitrain.monitoring.figures import Figure, RankFigures
from mpitrain.report.runs import read_run
from mpitrain.report.series import plots

HOWS = {"seconds": "sum", "loss": "mean", "highest": "maximum", "threshold": "newest"}
GIVEN = [(0, 3.0), (1, 5.0), (0, 1.0)]  # rank and value, one after another
COMBINED = {"seconds": 9.0, "loss": 3.0, "highest": 5.0, "threshold": 3.0}


def test_figures_of_ranks_are_combined_as_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Since the last record, and over all; the newest of a rank that gave none since then stays."""
    monkeypatch.setattr(figures, "FIGURES", {name: Figure(how) for name, how in HOWS.items()})  # type: ignore[arg-type]
    master = RankFigures()
    for rank, value in GIVEN:
        worker = RankFigures()
        for name in HOWS:
            worker.give(name, value)
        master.add(rank, worker.take())
        assert worker.take() == {}
    assert master.recent() == master.whole() == COMBINED
    assert master.recent() == {}
    for name in HOWS:
        master.give(name, 7.0, rank=1)
    assert master.recent() == {"seconds": 7.0, "loss": 7.0, "highest": 7.0, "threshold": 4.0}
    assert master.whole() == {"seconds": 16.0, "loss": 4.0, "highest": 7.0, "threshold": 4.0}
    with pytest.raises(WireError, match="rank 3"):
        master.add(3, {"no such": (1.0, 1)})


@pytest.mark.parametrize("name", ["asgd", "easgd", "allreduce", "block-momentum", "sparse-delta", "msgd"])
def test_every_algorithm_s_figures_arrive(launch: Callable[..., Any], tmp_path: Path, name: str) -> None:
    """In metrics.jsonl, from which TensorBoard has them, in summary.json and in the report."""
    settings = ("run.gradient_statistics=true", "training.epochs=1", f"algorithm.name={name}", "run.evaluate_every=0")
    ended = launch(3, *(word for each in settings for word in ("--set", each)), "--out", "run")
    assert ended.status == 0, ended.err
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    records = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert any("gradient_zeros_mean" in record for record in records if record["event"] == "train")
    assert 0 <= summary["gradient_zeros_mean"] < 1
    drawn = {plot.kind.key for plot in plots([read_run(tmp_path / "run", "run")])}
    assert "gradient_zeros_mean" in drawn
