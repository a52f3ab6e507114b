"""The program's own protocols on simulated ranks: the bits of MPI, and chunks."""

import json
from collections import Counter
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from mpitrain.algorithms.block_momentum import BlockRule
from mpitrain.algorithms.optimizers.adamw import AdamW
from mpitrain.api.options import TrainOptions
from mpitrain.api.train import train_on
from mpitrain.mpi import MPI
from mpitrain.protocols.model_averaging import AveragingStepper
from mpitrain.sampling.queue import Work
from mpitrain.signals import Stop
from mpitrain.simulation.job import Job
from mpitrain.simulation.messages import ClusterNetwork, Link
from mpitrain.training.gradients import Learner
from tests.leftovers import left_behind

KEYS = ("run.threads=1", "run.progress=none", "run.device=cpu", "training.seed=5", "training.epochs=0.3")
ROUND_ROBIN = "algorithm.order=round-robin"
#: Settings with which nothing depends on what comes when.
ORDERED = {
    "allreduce": (),
    "block-momentum": (),
    "hybrid": (),
    "easgd-sync": ("algorithm.tau=4",),
    "asgd": (ROUND_ROBIN,),
    "easgd": ("algorithm.tau=4", ROUND_ROBIN),
    "sparse-delta": (ROUND_ROBIN,),
}
#: Several trainings under one mpirun.
UNDER_MPI = """
import json, sys
from pathlib import Path
from mpitrain.api.options import TrainOptions
from mpitrain.api.train import train_on
from mpitrain.mpi import Transport, abort_on_exception
from mpitrain.signals import Stop
abort_on_exception()
for name, keys in json.loads(sys.argv[1]).items():
    assert train_on(Transport(), TrainOptions(overrides=tuple(keys), out=Path(name)), Stop()) == 0, name
"""


def simulated(job: Job[int], folder: Path, *keys: str) -> dict[str, Any]:
    """The summary of a training; every rank must end well, and nothing may be left under way."""
    options = TrainOptions(overrides=keys, out=folder)
    with threadpool_limits(1):  # of the process: the ranks' own limits must not undo each other
        assert set(job.run(lambda transport: train_on(transport, options, Stop()))) == {0}
    assert left_behind(job) == []
    return dict(json.loads((folder / "summary.json").read_text()))


def test_the_bits_of_runs_under_mpi(launch: Callable[..., Any], tmp_path: Path) -> None:
    """Three ranks, where the order of exchanges is fixed; two where sums of three are not added in MPICH's order."""
    ranks = 3 if MPI.get_vendor()[0] == "MPICH" else 2
    settings = {name: (*KEYS, f"algorithm.name={name}", *keys) for name, keys in ORDERED.items()}
    ended = launch(ranks, json.dumps(settings), program=("-c", UNDER_MPI))
    assert ended.status == 0, ended.err
    for name, keys in settings.items():
        told = simulated(Job[int](ranks), tmp_path / "simulated" / name, *keys)
        real = json.loads((tmp_path / name / "summary.json").read_text())
        same = ("parameters_sha256", "samples", "updates", "exchange", "algorithm", "workers")
        assert {key: told[key] for key in same} == {key: real[key] for key in same}


@pytest.mark.parametrize("last", [8, 10])
@pytest.mark.parametrize("more", [(), ("algorithm.preset=slowmo", "training.schedule=linear")])
def test_a_last_period_counts_its_steps_on_both_sides_of_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...], last: int
) -> None:
    """Averages after steps 4 and 8 and at the end, after 11; stopped after 9 or 11, the last one is of three steps
    still, at the rate of its last step."""
    keys = (*KEYS, "algorithm.name=block-momentum", "algorithm.tau=4", "training.minibatch=66", "training.epochs=1")
    keys = (*keys, *more)
    whole = simulated(Job[int](2), tmp_path / "whole", *keys)
    step = AveragingStepper.step

    def stopped(stepper: AveragingStepper, work: Work) -> float:
        stepper.session.stop.flag |= stepper.t == last
        return step(stepper, work)

    options = TrainOptions(overrides=keys, out=tmp_path / "run")
    with threadpool_limits(1), monkeypatch.context() as patched:
        patched.setattr(AveragingStepper, "step", stopped)
        Job[int](2).run(lambda transport: train_on(transport, options, Stop()))
    told = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert told["exit_reason"] != "finished" and told["updates"] == last + 1
    with threadpool_limits(1):
        Job[int](2).run(lambda transport: train_on(transport, TrainOptions(resume=tmp_path / "run"), Stop()))
    told = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert told["updates"] == 10 - last and told["parameters_sha256"] == whole["parameters_sha256"]


def test_a_last_period_ends_at_the_rate_of_its_last_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SlowMo's momentum is in units of that rate, not of the one at the end of the schedule, which is 0."""
    keys = ("algorithm.name=block-momentum", "algorithm.preset=slowmo", "algorithm.tau=4", "training.minibatch=66")
    rates, begin = list[float](), BlockRule.begin

    def noted(rule: BlockRule, eta: float, workers: int) -> None:
        rates.append(eta)
        begin(rule, eta, workers)

    monkeypatch.setattr(BlockRule, "begin", noted)
    scheduled = ("training.epochs=1", "training.learning_rate=1", "training.schedule=linear")
    simulated(Job[int](1), tmp_path / "run", *KEYS, *keys, *scheduled)
    assert rates == pytest.approx([1 - 66 * t / 1438 for t in (3, 7, 11, 15, 19, 21)])


def test_a_training_that_is_lengthened_takes_whole_periods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """22 steps end with an average after two; of 22 more, the first one follows four again. Buffers are then reset."""
    averaged, clocks, due, step = list[int](), list[int](), BlockRule.due, AdamW.step

    def noted(rule: BlockRule, t: int) -> bool:
        averaged.extend([t] * due(rule, t))
        return due(rule, t)

    def stepped(*arguments: Any, t: int, **more: Any) -> None:
        clocks.append(t)
        step(*arguments, t=t, **more)

    monkeypatch.setattr(BlockRule, "due", noted)
    monkeypatch.setattr(AdamW, "step", stepped)
    keys = ("algorithm.name=block-momentum", "algorithm.tau=4", "algorithm.buffers=reset", "training.optimizer=adamw")
    simulated(Job[int](1), tmp_path / "run", *KEYS, *keys, "training.minibatch=66", "training.epochs=1")
    longer = TrainOptions(resume=tmp_path / "run", overrides=("training.epochs=2",))
    with threadpool_limits(1):
        assert Job[int](1).run(lambda transport: train_on(transport, longer, Stop())) == [0]
    assert averaged == [3, 7, 11, 15, 19, 25, 29, 33, 37, 41]
    assert [t for t, _ in groupby(clocks)] == 2 * [*(5 * [0, 1, 2, 3]), 0, 1]


def heavy(seed: int) -> Callable[[int, int], float]:
    """Seconds of gradients with a heavy tail."""
    random = np.random.default_rng(seed)
    return lambda rank, samples: 1e-4 * samples * float(random.pareto(1.2) + 0.1)


QUIET = ("run.evaluate_every=0", "run.checkpoint_every=0")
IN_TURN = ("round-robin", "messages")


@pytest.mark.parametrize(
    ("name", "order", "exchange"),
    [
        *(("easgd", "free", "auto"), ("easgd", "free", "messages"), ("easgd", *IN_TURN), ("admm", *IN_TURN)),
        *(("mvadownpour", "free", "auto"), ("mdownpour", *IN_TURN), ("mdownpour", "free", "messages")),
    ],
)
def test_workers_have_chunks_of_their_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, order: str, exchange: str
) -> None:
    """Two chunks of 50 at a time, of 1438 samples: one worker alone trains on them, before it takes others. In
    round-robin order the bits do not depend on what comes when, although workers run out of samples at different
    turns."""
    keys = (*KEYS, f"algorithm.name={name}", "training.epochs=2", "algorithm.sampling=chunked", "algorithm.chunk=50")
    keys = (*keys, "algorithm.loaders=2", f"algorithm.order={order}", f"run.exchange={exchange}", *QUIET)
    plain, bits = Learner.load, set()
    for seed in (1, 2) if order == "round-robin" else (1,):
        taken: dict[int, list[tuple[int, int]]] = {}

        def load(learner: Learner, work: Work, taken: dict[int, list[tuple[int, int]]] = taken) -> Any:
            places = range(work.start, work.start + work.count)
            taken.setdefault(id(learner), []).extend((work.epoch, place) for place in places)
            return plain(learner, work)

        monkeypatch.setattr(Learner, "load", load)
        job = Job[int](4, ClusterNetwork(Link(1e-4, 1e8), jitter=5e-3, seed=seed), seconds=heavy(seed))
        bits.add(simulated(job, tmp_path / str(seed), *keys)["parameters_sha256"])
        own = [[group for group, _ in groupby(places, lambda p: (p[0], p[1] // 100))] for places in taken.values()]
        groups = [(epoch, number) for epoch in range(2) for number in range(15)]
        assert len(own) == 3 and sorted(group for each in own for group in each) == groups
        served = Counter(place for places in taken.values() for place in places)
        assert served == Counter({(epoch, place): 1 for epoch in range(2) for place in range(1438)})
    assert len(bits) == 1
