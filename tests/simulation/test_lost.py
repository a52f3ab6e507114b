"""Some seeds of the search for faults in what goes on without ranks (tests/search/lost.py), and those that it found."""

from collections import Counter
from dataclasses import replace
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import mpitrain.protocols.peers
from mpitrain.api import going_on
from mpitrain.checkpoint.writer import Saver
from mpitrain.errors import BadInput
from mpitrain.mpi import Transport
from mpitrain.protocols.server.adding import AddingWorker
from mpitrain.protocols.server.by_messages import ServingCentre
from mpitrain.protocols.synchronous import AllreduceStepper
from mpitrain.signals import Stop
from mpitrain.training.context import Session
from tests.search import lost
from tests.search.losses import ANY, ONCE, RATE, Case, Loss, case
from tests.search.witnessed import Watch

SPARSE = ("algorithm.name=sparse-delta", "training.minibatch=8")


def test_nothing_goes_wrong_whoever_is_lost_when(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """Of every fifth way to train, and so on until all have come."""
    for seed in range(0, 5 * pytestconfig.getoption("--seeds"), 5):
        assert lost.fault(seed, tmp_path / str(seed)) == "", case(seed)


def fault(what: Case, folder: Path, seed: int = 1) -> str:
    """What is wrong with a case."""
    return "; ".join(lost.wrong(what, folder / "run", lost.trained(what, seed, folder / "run")))


def test_a_rank_that_stands_still_while_the_others_recover_is_left_behind(tmp_path: Path) -> None:
    """Also where it is the first of them; once the job ended."""
    keys = ("algorithm.name=easgd", "algorithm.tau=3", "training.minibatch=16", "training.epochs=0.3")
    for calls in (4, 16, 60):
        losses = (Loss("call", 0, 5, 20, 0.0, inf), Loss("recovery", 1, 1, calls, 0.0, 1e6))
        what = Case("easgd", ANY, keys, 4, losses, 1e-4, 1e-3, 0.0, 0.3)
        assert fault(what, tmp_path / str(calls)) == ""


@pytest.mark.parametrize("seed", range(3))
def test_turns_that_a_lost_peer_let_go_by_unsent_are_not_done_again(tmp_path: Path, seed: int) -> None:
    """Its next message has their gradients; once its messages were taken for the number of its turns."""
    keys = (*SPARSE, "algorithm.window=1", "algorithm.bits=32", "algorithm.threshold=0.001", "training.epochs=0.3")
    losses = (Loss("call", 1, 40, 15 + seed, 0.0, inf),)
    what = Case("sparse-delta", ONCE, keys, 3, losses, 9e-3, 1e-3, 0.0, 0.3)
    assert fault(what, tmp_path, seed) == ""


def test_a_spare_that_is_lost_is_no_peer(tmp_path: Path) -> None:
    """Whose messages nobody has."""
    keys = (*SPARSE, "run.spares=1", "training.epochs=0.3")
    losses = (Loss("call", 1, 20, 20, 0.0, inf), Loss("call", 2, 20, 20, 0.0, inf))
    what = Case("sparse-delta", ONCE, keys, 3, losses, 1e-4, 1e-2, 0.0, 0.3)
    assert fault(what, tmp_path) == ""


@pytest.mark.parametrize("seed", range(3))
def test_steps_since_the_last_average_are_taken_again(tmp_path: Path, seed: int) -> None:
    """Though a checkpoint that was made between two averages counts them; its parameters have nothing of them."""
    keys = ("algorithm.name=block-momentum", "algorithm.tau=4", "algorithm.momentum=0", "training.minibatch=8")
    losses = (Loss("call", 0, 19, 10 * seed, 0.0, inf),)
    keys += ("run.checkpoint_samples=76", "training.epochs=0.15")
    what = Case("block-momentum", ONCE, keys, 3, losses, 1e-3, 1e-2, 0.0, 0.15)
    assert fault(what, tmp_path, seed) == ""


def test_steps_before_a_resume_are_taken_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a rank is lost before the next average: the parameters of all have nothing of them."""
    keys = ("algorithm.name=block-momentum", "algorithm.tau=4", "algorithm.momentum=0", "training.minibatch=8")
    keys += ("training.epochs=0.3",)
    stop, run, quiet = Stop(), tmp_path / "run", Case("block-momentum", ONCE, keys, 3, (), 1e-4, 1e-3, 0.0, 0.3)
    loaded = Watch.loaded
    monkeypatch.setattr(
        Watch, "loaded", lambda watch, *rest: (watch.loads == 31 and stop.ask(), loaded(watch, *rest))[1]
    )
    first = lost.trained(quiet, 1, run, stop=stop)
    assert first.statuses == [75] * 3
    what = replace(quiet, losses=(Loss("call", 1, 1, 1, 0.0, inf),))
    told = lost.trained(what, 1, run, resume=True)
    assert (set(told.statuses), len(told.watch.starts)) == ({0}, 2)
    told.watch.first_theta = first.watch.first_theta
    assert lost._content(what, told.watch, lost._at_the_end(what, run), Counter(range(431)), "at the end") == []


def test_a_spare_that_is_ahead_of_the_others_keeps_nobody_from_saving(tmp_path: Path) -> None:
    """When another rank is lost while those that trained save what they have."""
    keys = ("algorithm.name=asgd", "training.minibatch=8", "training.epochs=0.3", "run.spares=1")
    for calls in (20, 28, 36):
        losses = (Loss("call", 1, 25, 20, 0.0, inf), Loss("recovery", 2, 1, calls, 0.0, inf))
        folder, what = tmp_path / str(calls), Case("asgd", ONCE, keys, 4, losses, 1e-3, 1e-3, 0.0, 0.3)
        told = lost.trained(what, 1, folder / "run")
        assert lost.wrong(what, folder / "run", told) == []
        assert "begins anew" not in told.said


def test_a_full_disk_leaves_the_newest_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From which the others go on, as what they have cannot be saved. Of workers that had not exchanged it counts more
    samples than the centre, and was deleted for that: the training began anew."""
    save = going_on.LostRanks._save

    def full(*_: object) -> None:
        raise BadInput("no room")

    def saving(ranks: going_on.LostRanks, session: Session, saver: Saver, transport: Transport) -> None:
        monkeypatch.setattr(saver, "begin", full)
        save(ranks, session, saver, transport)

    monkeypatch.setattr(going_on.LostRanks, "_save", saving)
    keys = ("algorithm.name=easgd", "algorithm.tau=17", "training.minibatch=8", "training.epochs=0.3")
    keys += ("run.checkpoint_samples=76", "run.checkpoints_kept=1")
    what = Case("easgd", ANY, keys, 4, (Loss("call", 1, 42, 20, 0.0, inf),), 1e-4, 1e-3, 0.0, 0.3)
    told = lost.trained(what, 1, tmp_path / "run")
    assert (told.error, set(told.statuses), len(told.watch.starts)) == ("", {0}, 2), told.said
    assert "begins anew" not in told.said and told.said.count("no room; what came after the newest checkpoint") == 1


@pytest.mark.parametrize("refused", [False, True])
def test_only_its_own_fault_tells_of_a_checkpoint(refused: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """Not that of one that waited for the lost rank, whose folder was cleared, nor that of the best model."""
    folder = Path("run/checkpoints")
    told = [(folder / "000000000064", "its folder is gone"), (folder / "000000000064", ""), (folder / "best", "full")]
    told += [(folder / "000000000064", "no room")] * refused
    saver: Any = SimpleNamespace(folder=folder, settle=lambda: None, outcomes=lambda: told)
    assert going_on._written(saver, 64) is not refused
    assert ("no room; what came after" in capsys.readouterr().err) == refused


@pytest.mark.parametrize("seed", range(3))
def test_samples_count_with_the_move_that_has_them(tmp_path: Path, seed: int) -> None:
    """Of any worker: none is in the centre twice, or not at all. Once they counted when they were reported."""
    keys = ("algorithm.name=downpour", "algorithm.tau=3", "training.minibatch=8", "training.epochs=0.3")
    losses = (Loss("call", 1, 9 + 4 * seed, 13 * seed, 0.0, inf),)
    what = Case("downpour", ONCE, keys, 4, losses, 1e-4, 1e-3, 0.0, 0.3)
    assert fault(what, tmp_path, seed) == ""


def test_a_worker_that_a_stage_leaves_out_pushes_what_it_has(tmp_path: Path) -> None:
    """Once it began again at the centre without: its samples since the last exchange were lost, without any fault."""
    keys = ("algorithm.name=downpour", "algorithm.tau=3", "training.minibatch=8", "training.epochs=0.5")
    stages = [f"{{at={at},workers={k},minibatch=8,learning_rate={RATE}}}" for at, k in ((0.0, 3), (0.2, 1), (0.35, 3))]
    what = Case("downpour", ONCE, (*keys, f"stages=[{','.join(stages)}]"), 4, (), 1e-4, 1e-3, 0.0, 0.5)
    assert fault(what, tmp_path) == ""


@pytest.mark.parametrize("name", ["asgd", "downpour", "sparse-delta"])
def test_a_stage_of_more_workers_than_are_left_takes_those(tmp_path: Path, name: str) -> None:
    """Once it was refused, and the training ended with status 2."""
    keys = (f"algorithm.name={name}", "training.minibatch=8", "training.epochs=0.5")
    keys += () if name != "sparse-delta" else ("algorithm.bits=32", "algorithm.threshold=0.001")
    workers = 4 if name == "sparse-delta" else 3
    stages = [f"{{at={at},workers={k},minibatch=8,learning_rate={RATE}}}" for at, k in ((0.0, workers), (0.2, 1))]
    stages += [f"{{at=0.35,workers={workers}}}"]
    losses = (Loss("call", 1, 9, 20, 0.0, inf),)
    what = Case(name, ONCE, (*keys, f"stages=[{','.join(stages)}]"), 4, losses, 1e-4, 1e-3, 0.0, 0.5)
    told = lost.trained(what, 1, tmp_path / "run")
    assert lost.wrong(what, tmp_path / "run", told) == []
    assert f"a stage asks for {workers} workers; {workers - 1} are left" in (tmp_path / "run/metrics.jsonl").read_text()


# ---- faults that it finds


def test_it_finds_samples_that_are_not_handed_out_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that a lost worker had in hand."""
    settled = going_on._settled

    def careless(session: Session) -> int:
        session.outstanding = session.outstanding and list
        return settled(session)

    monkeypatch.setattr(going_on, "_settled", careless)
    assert "not in the parameters as they should" in lost.fault(2, tmp_path)


def test_it_finds_peers_that_do_not_even_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one's replica as it is."""
    monkeypatch.setattr(mpitrain.protocols.peers, "even_out", lambda loop, transport, gone: transport.rank == 0)
    assert "not in the parameters as they should" in lost.fault(28, tmp_path)


def test_it_finds_half_a_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a worker that died between two pieces."""
    begins = ServingCentre.__init__

    def careless(centre: Any, *arguments: Any) -> None:
        begins(centre, *arguments[:6])

    monkeypatch.setattr(ServingCentre, "__init__", careless)
    assert "whole moves" in lost.fault(372, tmp_path)


def test_it_finds_half_an_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a replica, whose sums came but for the last."""
    begins = AllreduceStepper.__init__

    def careless(stepper: AllreduceStepper, session: Session) -> None:
        begins(stepper, session)
        stepper._all_or_nothing = False

    monkeypatch.setattr(AllreduceStepper, "__init__", careless)
    assert "not in the parameters as they should" in lost.fault(305, tmp_path)


def test_it_finds_samples_that_are_in_the_centre_and_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where moves do not tell what they are of."""
    monkeypatch.setattr(AddingWorker, "_report_move", lambda worker: None)
    assert "not in the parameters as they should" in lost.fault(85, tmp_path)
