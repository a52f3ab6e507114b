"""Figures of ranks: how they are combined, and that they arrive, from every rank, wherever a run is recorded."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mpitrain.errors import WireError
from mpitrain.monitoring import counters
from mpitrain.monitoring.counters import RankFigures
from mpitrain.monitoring.records import Figure
from mpitrain.mpi import Transport
from mpitrain.protocols import PROTOCOLS
from mpitrain.report.runs import read_run
from mpitrain.report.series import plots

HOWS = {"seconds": "sum", "loss": "mean", "highest": "maximum", "threshold": "newest"}
GIVEN = [(0, 3.0), (1, 5.0), (0, 1.0)]  # rank and value, one after another
COMBINED = {"seconds": 9.0, "loss": 3.0, "highest": 5.0, "threshold": 3.0}


def test_figures_of_ranks_are_combined_as_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Since the last record, and over all; the newest of a rank that gave none since then stays."""
    monkeypatch.setattr(counters, "FIGURES", {name: Figure(how) for name, how in HOWS.items()})  # type: ignore[arg-type]
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
def test_every_algorithm_s_figures_arrive(simulated: Callable[..., Any], tmp_path: Path, name: str) -> None:
    """In metrics.jsonl, from which TensorBoard has them, in summary.json and in the report."""
    settings = ("run.gradient_statistics=true", "training.epochs=1", f"algorithm.name={name}", "run.evaluate_every=0")
    ended = simulated(3, *(word for each in settings for word in ("--set", each)), "--out", "run")
    assert ended.status == 0, ended.err
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    records = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    recorded = [record for record in records if record["event"] == "train" and "gradient_norm" in record]
    assert recorded and all(record["gradient_norm"] > 0 <= record["gradient_zeros_mean"] < 1 for record in recorded)
    assert summary["gradient_norm"] > 0 and 0 <= summary["gradient_zeros_mean"] < 1
    drawn = {plot.key for plot in plots([read_run(tmp_path / "run", "run")])}
    assert drawn >= {"gradient_norm", "gradient_zeros_mean"}


@pytest.mark.parametrize(("name", "minibatches"), [("asgd", 1), ("asgd", 3), ("sgd", 1), ("easgd", 1)])
def test_the_norm_is_that_of_a_minibatch_s_mean_gradient(
    session_of: Callable[..., Any], name: str, minibatches: int
) -> None:
    """The toy's loss is half its square; also where a worker sends a sum, or gradients are per sample."""
    more = ("algorithm.minibatches=3",) if minibatches > 1 else ()
    settings = ("training.epochs=1", "training.rate_per=sample", "training.learning_rate=0.001", *more)
    session = session_of(Transport(deadline=10.0), f"algorithm.name={name}", "run.gradient_statistics=true", *settings)
    norms, gradient = list[float](), session.learner.network.loss_and_gradient

    def noted(*given: Any, **named: Any) -> float:
        loss = float(gradient(*given, **named))
        norms.append((2 * loss) ** 0.5)
        return loss

    session.learner.network.loss_and_gradient = noted
    PROTOCOLS[session.config.algorithm.protocol](session)
    assert session.counters.summary()["gradient_norm"] == pytest.approx(sum(norms) / len(norms))
