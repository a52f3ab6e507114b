"""The training loss that a run tells is that of its samples, however long they took."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults import Fault, program


def losses(folder: Path) -> list[Any]:
    """Samples, loss and error of every evaluation; the loss in the summary must be that of the last one."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    keys = ("samples", "train_loss", "test_error")  # the rounding of test_loss is that of the evaluation's slices
    found = [tuple(record[key] for key in keys) for record in records if record["event"] == "evaluate"]
    assert json.loads((folder / "summary.json").read_text())["train_loss"] == found[-1][1]
    return found


@pytest.mark.parametrize(
    ("ranks", "settings"),
    [(1, "algorithm.name=msgd"), (2, "algorithm.name=allreduce"), (3, "algorithm.order=round-robin")],
    ids=["msgd", "allreduce", "asgd in turn"],
)
def test_a_deterministic_run_tells_the_same_losses_at_any_speed(
    launch: Callable[..., Any], tmp_path: Path, ranks: int, settings: str
) -> None:
    """To the bit, although one of two runs is held up so that records of seconds fall between its epochs."""
    slow = program(Fault("mpitrain.training.gradients.Learner.gradient", ["sleep 0 0.02"]))
    told = []
    for folder, how in (("fast", ("-m", "mpitrain")), ("slow", slow)):
        keys = (settings, "training.epochs=2", "training.minibatch=16")
        words = ["train", "--out", folder, *(word for key in keys for word in ("--set", key))]
        ended = launch(ranks, *words, program=how)
        assert ended.status == 0, ended.err
        told.append(losses(tmp_path / folder))
    assert told[0] == told[1] and len(told[0]) == 2


@pytest.mark.parametrize("name", ["asgd", "easgd", "sparse-delta"])
def test_free_running_ranks_too_tell_one_loss_for_the_last_epoch(
    simulated: Callable[..., Any], tmp_path: Path, name: str
) -> None:
    """In the epoch's record and in the summary, although counts come in lumps."""
    ended = simulated(3, "--out", "run", "--set", f"algorithm.name={name}", "--set", "training.epochs=3")
    assert ended.status == 0, ended.err
    last = losses(tmp_path / "run")[-1]
    assert last[0] == 3 * 1438


@pytest.mark.parametrize("method", ["none", "layerwise"])
def test_a_resumed_run_knows_the_losses_before_its_checkpoint(
    simulated: Callable[..., Any], tmp_path: Path, method: str
) -> None:
    """Half of the last epoch was trained before it, half after: the summary's is over both, after pre-training too."""
    model = ("model.preset=zhang2013-dnn", "model.width=0.01", "training.learning_rate=0.5")
    for place, epochs in (("--out", 1.5), ("--resume", 2)):
        keys = (f"training.epochs={epochs}", "run.evaluate_every=0.5", f"pretraining.method={method}", *model)
        ended = simulated(1, place, "run", *(word for key in ("algorithm.name=sgd", *keys) for word in ("--set", key)))
        assert ended.status == 0, ended.err
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    halves = {
        record["samples"]: record["train_loss"] for record in map(json.loads, lines) if record["event"] == "evaluate"
    }
    told = json.loads((tmp_path / "run" / "summary.json").read_text())["train_loss"]
    assert told == pytest.approx((halves[719 * 3] + halves[719 * 4]) / 2, rel=1e-12)
