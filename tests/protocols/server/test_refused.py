"""Gradients that are not finite: whole runs of a server that refuses them, and what is said at the end."""

import json
from collections import Counter
from collections.abc import Callable
from math import nan
from pathlib import Path
from typing import Any

import pytest

from mpitrain.models.network import Network
from mpitrain.protocols.messages import Gradient
from mpitrain.protocols.server.interface import Claimed
from mpitrain.protocols.server.merging import MergingWorker
from mpitrain.sampling.batch import Batch
from mpitrain.sampling.queue import Queue, Work

SAMPLES = 1438  # of the digits
KEYS = ("--set", "run.evaluate_every=0", "--set", "training.epochs=2", "--set", "run.progress=plain", "--out", "run")


def told(folder: Path) -> dict[str, Any]:
    """summary.json."""
    return dict(json.loads((folder / "run" / "summary.json").read_text()))


def spoil(monkeypatch: pytest.MonkeyPatch, is_broken: Callable[[int, Work], bool]) -> Counter[tuple[int, int]]:
    """Have workers send NaN over what is broken, by rank and samples; the samples that were trained on otherwise."""
    plain, trained = MergingWorker.round, Counter[tuple[int, int]]()

    def spoilt(worker: MergingWorker, claimed: Claimed) -> Gradient:
        sent = plain(worker, claimed)
        if is_broken(worker.transport.rank, sent.work):
            worker.centre.gradient[3] = nan
        else:
            trained.update((sent.work.epoch, sent.work.start + place) for place in range(sent.work.count))
        return sent

    monkeypatch.setattr(MergingWorker, "round", spoilt)
    return trained


@pytest.mark.parametrize("order", ["free", "round-robin"])
def test_a_worker_whose_gradients_are_never_finite_ends_the_run(
    simulated: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, order: str
) -> None:
    """By name, although the other worker's are fine all the while."""
    spoil(monkeypatch, lambda rank, work: rank == 2)
    ended = simulated(3, "--set", f"algorithm.order={order}", *KEYS)
    assert ended.status == 1 and "rank 2: its gradient" in ended.err
    assert ended.err.count("\n") == 1 and not (tmp_path / "run" / "summary.json").exists()


@pytest.mark.parametrize(
    ("ranks", "keys"),
    [
        *((1, ()), (3, ()), (3, ("order=round-robin",)), (3, ("preset=chan2014",)), (4, ("minibatches=3",))),
        *(
            (3, ("name=mdownpour", "sampling=chunked", "chunk=50", "loaders=2")),
            (3, ("until_free=true", "minibatches=2")),
        ),
    ],
)
def test_samples_of_refused_gradients_are_trained_on_later(
    simulated: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ranks: int, keys: tuple[str, ...]
) -> None:
    """Each sample once an epoch, and the refusals are counted; the last rank's gradients are broken now and then."""
    seen = Counter[int]()

    def is_broken(rank: int, work: Work) -> bool:
        seen[rank] += 1
        return rank == ranks - 1 and seen[rank] % 4 == 0

    trained = spoil(monkeypatch, is_broken)
    settings = [word for key in keys for word in ("--set", f"algorithm.{key}")]
    ended = simulated(ranks, *settings, "--set", "training.learning_rate=0.01", *KEYS)
    assert ended.status == 0, ended.err
    assert told(tmp_path)["samples"] == 2 * SAMPLES and told(tmp_path)["gradients_refused"] == seen[ranks - 1] // 4
    assert trained == {(epoch, place): 1 for epoch in range(2) for place in range(SAMPLES)}
    assert f"{seen[ranks - 1] // 4} gradients with elements that are not finite" in ended.out


def test_a_worker_that_is_no_longer_needed_trains_what_the_others_have_left(
    simulated: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its last gradient before a stage of one worker is refused when that one has nothing left to do."""
    late = Counter[int]()

    def is_broken(rank: int, work: Work) -> bool:
        if rank == 2 and late[rank] == 0:
            late[rank] += 1
            worker_of[rank].transport.runtime.sleep(100.0)
            return True
        return False

    worker_of: dict[int, MergingWorker] = {}
    started = MergingWorker.__init__

    def begun(worker: MergingWorker, *arguments: Any) -> None:
        started(worker, *arguments)
        worker_of[worker.transport.rank] = worker

    monkeypatch.setattr(MergingWorker, "__init__", begun)
    trained = spoil(monkeypatch, is_broken)
    ended = simulated(3, "--set", "stages=[{at=0.1, workers=1}]", *KEYS)
    assert ended.status == 0, ended.err
    assert late[2] == 1 and told(tmp_path)["gradients_refused"] == 1
    assert trained == {(epoch, place): 1 for epoch in range(2) for place in range(SAMPLES)}


def test_a_run_that_has_lost_samples_does_not_say_that_it_finished(
    simulated: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Should the program lose some by a fault of its own."""
    monkeypatch.setattr(Queue, "give_back", lambda queue, work: None)
    seen = Counter[int]()

    def is_broken(rank: int, work: Work) -> bool:
        seen[rank] += 1
        return seen[rank] == 1

    spoil(monkeypatch, is_broken)
    ended = simulated(2, "--set", "training.minibatch=8", *KEYS)
    assert ended.status == 1 and told(tmp_path)["exit_reason"] == "incomplete"
    assert ended.err == "mpitrain: incomplete: only 2,868 of 2,876 samples were trained on\n"


@pytest.mark.parametrize("name", ["sgd", "allreduce", "downpour"])
def test_parameters_that_are_not_finite_at_the_end_are_a_divergence(
    simulated: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    """The last gradient alone is broken: no loss shows it."""
    plain = Network.loss_and_gradient

    def broken(network: Network, theta: Any, gradient: Any, batch: Batch, *rest: Any, **more: Any) -> float:
        def spoilt(part: slice) -> None:
            gradient[part] = nan
            rest[-1](part)

        last = len(batch.targets) == SAMPLES % 100
        return plain(network, theta, gradient, batch, *(*rest[:-1], spoilt) if last else rest, **more)

    keys = ("--set", f"algorithm.name={name}", "--set", "training.minibatch=100", *KEYS, "--set", "training.epochs=1")
    assert simulated(1, *keys).status == 0
    monkeypatch.setattr(Network, "loss_and_gradient", broken)
    ended = simulated(1, *keys, "--out", "broken")
    summary = json.loads((tmp_path / "broken" / "summary.json").read_text())
    assert ended.status == 1 and summary["exit_reason"] == "diverged"
    assert ended.err.startswith("mpitrain: diverged: the final parameters are not finite")
