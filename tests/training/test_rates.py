"""Warm-up and a falling learning rate in trainings."""

import json
from collections.abc import Callable
from math import cos, pi
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpitrain import config as configuration
from mpitrain.algorithms import ALGORITHMS
from mpitrain.checkpoint.reading import folders
from mpitrain.errors import BadInput

SAMPLES = 1438
KEYS = (
    *("--set", "training.schedule=cosine", "--set", "training.warmup=10%", "--set", "training.epochs=3"),
    *("--set", "training.minibatch=24", "--set", "training.learning_rate=0.02", "--set", "run.evaluate_every=0.5"),
)


def expected(samples: int) -> float:
    warm, total = round(0.3 * SAMPLES), 3 * SAMPLES
    return 0.02 * (
        min((samples + 24) / warm, 1) if samples < warm else 0.5 + 0.5 * cos(pi * (samples - warm) / (total - warm))
    )


def records(folder: Path) -> list[dict[str, Any]]:
    read = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [record for record in read if record["event"] in ("train", "evaluate")]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm(simulated: Callable[..., Any], tmp_path: Path, name: str) -> None:
    """It learns, and its records hold the rate at their place, which is 0 at the end."""
    ended = simulated(3, "--set", f"algorithm.name={name}", *KEYS, "--out", str(tmp_path / "run"))
    assert ended.status == 0, ended.err
    found = records(tmp_path / "run")
    for record in found:
        if record["samples"] >= 0.3 * SAMPLES:  # the steps of the warm-up are of all ranks with some algorithms
            assert record["learning_rate"] == pytest.approx(expected(record["samples"]), abs=1e-9)
    assert found[-1]["learning_rate"] == pytest.approx(0, abs=1e-9) and found[-1]["samples"] == 3 * SAMPLES
    assert found[-1]["train_loss"] < 1.5


def test_a_resume_on_other_ranks_goes_on_with_the_schedule(simulated: Callable[..., Any], tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    keys = ("--set", "algorithm.name=allreduce", *KEYS, "--set", "run.checkpoint_samples=1000")
    assert simulated(2, *keys, "--out", run).status == 0
    first = folders(tmp_path / "run" / "checkpoints")[0]
    for later in folders(tmp_path / "run" / "checkpoints")[1:]:
        later.rename(tmp_path / later.name)
    assert simulated(3, "--resume", run, "--set", "run.evaluate_every=0.2").status == 0
    resumed = [record for record in records(tmp_path / "run") if record["samples"] > int(first.name)]
    assert len(resumed) > 10
    for record in resumed:
        assert record["learning_rate"] == pytest.approx(expected(record["samples"]), abs=1e-9)


def test_a_small_rate_moves_by_one_unit(simulated: Callable[..., Any], tmp_path: Path) -> None:
    """What a peer sends is a whole number of units, also when the rate has fallen below one."""
    keys = ("--set", "algorithm.name=sparse-delta", *KEYS, "--set", "training.learning_rate=1e-4")
    ended = simulated(3, *keys, "--set", "algorithm.threshold=0.1", "--out", str(tmp_path / "run"))
    assert ended.status == 0, ended.err


def test_sgd_is_pytorchs_with_a_schedule(simulated: Callable[..., Any], tmp_path: Path) -> None:
    """Step by step, with torch.optim.lr_scheduler.LambdaLR."""
    torch = pytest.importorskip("torch", reason="needs PyTorch (the extra mpitrain[torch])")
    import mpitrain
    from mpitrain.data.corpus import Corpus
    from mpitrain.data.digits import embedded
    from mpitrain.data.sampler import epoch_indices
    from mpitrain.sampling.batch import Batch

    keys = ("--set", "algorithm.name=sgd", *KEYS, "--set", "training.epochs=1", "--set", "training.seed=4")
    model = ("--set", "model.preset=digits-cnn", "--set", "model.dropout=0", "--set", "model.backend=torch")
    assert simulated(1, *keys, *model, "--set", "training.dtype=float64", "--out", str(tmp_path / "run")).status == 0
    module = mpitrain.load(tmp_path / "run").module()
    start = ("--set", "training.epochs=0.001", "--set", "training.learning_rate=1e-30", "--set", "training.warmup=0")
    assert (
        simulated(1, *keys, *model, *start, "--set", "training.dtype=float64", "--out", str(tmp_path / "0")).status == 0
    )
    other = mpitrain.load(tmp_path / "0").module().double().train()
    corpus = Corpus(embedded(), "train", dtype=np.dtype(np.float64))
    order, steps = epoch_indices(4, 0, SAMPLES), -(-SAMPLES // 24)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.02)
    warm, total = round(0.1 * SAMPLES), SAMPLES

    def factor(step: int) -> float:
        served = 24 * step
        return min((served + 24) / warm, 1) if served < warm else 0.5 + 0.5 * cos(pi * (served - warm) / (total - warm))

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    for step in range(steps):
        which = order[24 * step : 24 * step + 24]
        batch = Batch(np.empty((len(which), *corpus.shape)), np.empty(len(which), np.int32))
        corpus.gather(np.ascontiguousarray(which), batch)
        inputs = torch.from_numpy(batch.inputs).permute(0, 3, 1, 2)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(other(inputs), torch.from_numpy(batch.targets).long()).backward()
        optimizer.step()
        scheduler.step()
    for ours, theirs in zip(module.parameters(), other.parameters(), strict=True):
        np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("per", ["minibatch", "sample"])
def test_ranks_clip_the_gradient_of_all(simulated: Callable[..., Any], tmp_path: Path, per: str) -> None:
    """Minibatches of 24 and 25 on one, two and three ranks: the same parameters, which clipping has changed."""
    found = []
    common = ("--set", "training.dtype=float64", "--set", "training.epochs=0.5", "--set", f"training.rate_per={per}")
    rate = 0.05 if per == "minibatch" else 0.002
    for minibatch in (24, 25):
        keys = (*common, "--set", f"training.minibatch={minibatch}", "--set", f"training.learning_rate={rate}")
        for ranks, norm in ((1, 0), (1, 0.5), (2, 0.5), (3, 0.5)):
            folder = tmp_path / f"{minibatch}-{ranks}-{norm}"
            own = ("--set", "algorithm.name=allreduce", "--set", "algorithm.batch=global")
            ended = simulated(ranks, *keys, *own, "--set", f"training.clip_norm={norm}", "--out", str(folder))
            assert ended.status == 0, ended.err
            found.append(json.loads((folder / "summary.json").read_text())["train_loss"])
        assert found[-1] == pytest.approx(found[-3], rel=1e-9) and found[-2] == pytest.approx(found[-3], rel=1e-9)
        assert abs(found[-4] - found[-3]) > 1e-3


@pytest.mark.parametrize("key, fc_batch", [("accumulate=2", "full"), ("accumulate=2", "sub"), ("clip_norm=1.0", "sub")])
def test_hybrid_updates_before_the_gradient_is_whole(key: str, fc_batch: str) -> None:
    with pytest.raises(BadInput, match=rf"training\.{key.partition('=')[0]}: not with hybrid, wh"):
        configuration.load(None, ["algorithm.name=hybrid", f"algorithm.fc_batch={fc_batch}", f"training.{key}"])


def test_records_tell_of_a_plateau_after_a_pretraining(simulated: Callable[..., Any], tmp_path: Path) -> None:
    """They told the rate that it would have without any."""
    keys = ("algorithm.name=easgd-sync", "algorithm.plateau=2", "training.learning_rate=1e-5", "training.epochs=1")
    keys += ("model.preset=strom2015-dnn", "model.width=0.01", "pretraining.method=layerwise", "pretraining.epochs=0.1")
    settings = [word for key in keys for word in ("--set", key)]
    ended = simulated(2, *settings, "--out", str(tmp_path / "run"))
    assert ended.status == 0, ended.err
    assert records(tmp_path / "run")[-1]["learning_rate"] == pytest.approx(1e-6)
