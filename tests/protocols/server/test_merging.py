"""The parameter server without messages: its arithmetic, and one worker in the server's own process."""

from collections import Counter
from contextlib import nullcontext
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from mpitrain.errors import BadInput, TrainingFailed
from mpitrain.flat import Layout, Parameter
from mpitrain.mpi import Transport
from mpitrain.protocols import PROTOCOLS
from mpitrain.protocols.messages import Assignment, Claim, Gradient, Grant, Ready
from mpitrain.protocols.server.link import MasterLink
from mpitrain.protocols.server.merged import TRIES, MergedCentre, MergingCentre, OwnMerged
from mpitrain.protocols.server.merging_master import MergingMaster
from mpitrain.protocols.server.updates import Updates
from mpitrain.protocols.server.versioned import Memory
from mpitrain.sampling.queue import Work

WORK = Work(0, 0, 1, 1)


def one_rank() -> Transport:
    """This process alone."""
    return Transport(deadline=10.0)


def test_a_sequence_of_gradients_gives_algorithm_1_by_hand(session_of) -> None:
    """μ = 0.5, β = 0.5, η = 0.25; all numbers are exact in binary.

    i=0, j=0: α=1:   v = −0.25·[4,8] = [−1,−2];          Θ = [1,1] + v = [0,−1]
    i=1, j=0: α=½:   v = ½[−1,−2] − 0.125·[8,−8] = [−1.5,0];  Θ = [−1.5,−1]
    i=2, j=2: α=1:   v = ½[−1.5,0] − 0.25·[1,4] = [−1,−1];    Θ = [−2.5,−2]
    """
    rate = "training.learning_rate=0.25"
    session = session_of(one_rank(), "algorithm.momentum=0.5", "algorithm.gradient_decay=0.5", rate)
    session.state.theta = np.array([1.0, 1.0])
    session.state.beside = {"velocity": np.zeros(2)}
    updates = Updates(session)
    for j, gradient in ((0, [4.0, 8.0]), (0, [8.0, -8.0]), (2, [1.0, 4.0])):
        updates.apply(np.array(gradient), Gradient(j, WORK), worker=1)
    assert session.state.theta.tolist() == [-2.5, -2.0]
    assert session.state.beside["velocity"].tolist() == [-1.0, -1.0]
    assert session.state.index == 3
    assert (session.counters.staleness_sum, session.counters.staleness_max) == (1, 1)


def test_rate_and_momentum_are_those_of_the_masters_index(session_of) -> None:
    """LEARNINGRATE(i), MOMENTUM(i) of Algorithm 1, whenever the gradient was begun: μ = 0.5, then 0.25; η = 1, then ½.

    Nothing merged: v = −1·2 = −2, Θ = −1.  After 64 samples: v = −2/4 − ½·2 = −1.5, Θ = −2.5.
    """
    stage = "stages=[{at=1, momentum=0.25, learning_rate=0.5}]"
    settings = ("algorithm.momentum=0.5", "training.learning_rate=1", "training.epochs=2", stage)
    session = session_of(one_rank(), *settings)
    session.state.theta, session.state.beside = np.array([1.0]), {"velocity": np.zeros(1)}
    updates = Updates(session)
    updates.apply(np.array([2.0]), Gradient(0, WORK), worker=1)
    assert session.state.theta.tolist() == [-1.0]
    session.counters.trained(64, 0.0)
    updates.apply(np.array([2.0]), Gradient(1, WORK), worker=1)
    assert session.state.theta.tolist() == [-2.5] and session.state.beside["velocity"].tolist() == [-1.5]


@pytest.mark.parametrize("settings", [["algorithm.name=sgd"], ["algorithm.name=asgd"]])
def test_a_momentum_that_cannot_change_is_bad_input(session_of, settings: list[str]) -> None:
    """Of another algorithm, and where there is no velocity."""
    with pytest.raises(BadInput, match="stages: momentum"):
        session_of(one_rank(), *settings, "stages=[{at=1, momentum=0.5}]")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite_is_refused_and_its_worker_named(session_of, bad: float) -> None:
    """A run ends after the limit in a row of one worker, whatever others send. A huge but finite one is taken."""
    updates = Updates(session_of(one_rank(), "run.nonfinite_limit=3"))
    fine, broken = np.full(5, 1e200), np.array([1.0, bad, 1, 1, 1])
    for worker, gradient in ((4, broken), (4, broken), (4, fine), (4, broken), (5, fine), (5, broken), (4, broken)):
        assert updates.accepts(gradient, Gradient(0, WORK), worker) is (gradient is fine)
    assert updates.counters.refusals == 5
    assert updates.accepts(fine, Gradient(0, WORK), worker=5)
    with pytest.raises(TrainingFailed, match="rank 4: its gradient from update 7 over samples 0 to 1 of epoch 0 is"):
        updates.accepts(broken, Gradient(7, WORK), worker=4)


@pytest.mark.parametrize("minibatch", [8, 7])
def test_one_worker_with_n_1_is_sgd_bit_for_bit(session_of, minibatch: int) -> None:
    """β = 1, μ = 0, the same order of samples."""
    common = (f"training.minibatch={minibatch}", "training.epochs=3", "training.learning_rate=0.1")
    trained = {}
    for name in ("asgd", "sgd"):
        session = session_of(one_rank(), f"algorithm.name={name}", *common)
        PROTOCOLS[session.config.algorithm.protocol](session)
        trained[name] = (session.state.theta, session.learner.corpus.gathered)
    assert np.array_equal(trained["asgd"][0], trained["sgd"][0])
    assert trained["asgd"][1] == trained["sgd"][1]
    assert not np.array_equal(trained["sgd"][0], np.ones(5))


def test_one_worker_with_n_3_is_sgd_to_rounding(session_of) -> None:
    """Its own steps take it where SGD goes; the sum of its gradients takes Θ there too."""
    states = {}
    for name, more in (("asgd", ["algorithm.minibatches=3"]), ("sgd", [])):
        session = session_of(
            one_rank(), f"algorithm.name={name}", "training.epochs=2", "training.learning_rate=0.1", *more
        )
        PROTOCOLS[session.config.algorithm.protocol](session)
        states[name] = session.state.theta
    assert np.allclose(states["asgd"], states["sgd"], rtol=1e-13)


def test_every_sample_once_an_epoch(session_of) -> None:
    """Also where the minibatch does not divide the epoch."""
    session = session_of(one_rank(), "training.minibatch=7", "training.epochs=2", "algorithm.minibatches=3")
    PROTOCOLS["server"](session)
    assert Counter(session.learner.corpus.gathered) == Counter(dict.fromkeys(range(64), 2))


def test_gradient_statistics(session_of) -> None:
    """Chan & Lane §3.4: the cosine is between the gradients of two workers only."""
    updates = Updates(session_of(one_rank(), "run.gradient_statistics=true"))
    for worker, gradient in ((1, [1.0, 0, 0, 0, 0]), (2, [1.0, 1.0, 0, 0, 0]), (2, [0, 0, 0, 0, 1.0])):
        updates.apply(np.array(gradient), Gradient(updates.state.index, WORK), worker)
    assert updates.counters.summary()["gradient_cosine_mean"] == pytest.approx(0.5**0.5)


class OneElement:
    """A "network" whose gradient is zero but for one element, another one at each minibatch."""

    drawing = False

    layout, input_shape, classes, split = Layout([Parameter("x", (5,), ("constant", 1.0))]), (1,), 2, 0

    def __init__(self) -> None:
        self.calls = 0

    def initial(self, seed: int, dtype: type = np.float64) -> np.ndarray:
        """All ones."""
        return np.ones(5, dtype)

    def loss_and_gradient(self, theta, gradient, batch, draws=None, on_ready=None):
        """The loss 1; the gradient of the next element."""
        gradient[:] = 0
        gradient[self.calls % len(gradient)] = 1
        self.calls += 1
        if on_ready:
            on_ready(slice(0, len(gradient)))
        return 1.0


@pytest.mark.parametrize("minibatches", [1, 3])
def test_the_share_of_zeros_is_that_of_a_minibatch_s_gradient(session_of, minibatches: int) -> None:
    """Four of five are zero in each, though not in their sum."""
    settings = ("run.gradient_statistics=true", "training.epochs=1", f"algorithm.minibatches={minibatches}")
    session = session_of(one_rank(), *settings, "training.minibatch=4", network=OneElement())
    PROTOCOLS["server"](session)
    assert session.counters.summary()["gradient_zeros_mean"] == pytest.approx(0.8)


@pytest.mark.parametrize("name", ["asgd", "mdownpour", "adownpour", "mvadownpour"])
def test_one_rank_in_round_robin_order_leaves_no_message(session_of, name: str) -> None:
    """A note to itself would never be taken, and the end would wait for it."""
    transport = one_rank()
    session = session_of(transport, f"algorithm.name={name}", "algorithm.order=round-robin", "training.epochs=1")
    PROTOCOLS["server"](session)
    assert transport.traffic.messages_sent == 0
    transport.flush()


@pytest.mark.parametrize("over_network", [True, False])
def test_after_tries_in_vain_more_and_more_pulls_ask_at_once(session_of, over_network: bool) -> None:
    """Pulls that ask at once follow each pull in vain over a network, and none one that has read Θ whole."""

    class Rewritten(Memory):
        def __init__(self) -> None:
            self.gradient, self.over_network, self.whole = np.zeros(1), over_network, False

        def read(self, out: np.ndarray) -> int | None:
            pulls.append("read")
            return 5 if self.whole else None

    memory, pulls = Rewritten(), list[str]()
    centre = MergedCentre(session_of(one_rank()), memory, cast(MasterLink, None))
    centre._ask = lambda out: pulls.append("asked") or 5  # type: ignore[method-assign]
    for whole, then in [*((False, n) for n in (1, 3, 7, 15, 31, 63, 64, 64)), (True, 0), (False, 1), (False, 3)]:
        memory.whole, at_once = whole, then if over_network else 0
        for _ in range(1 + at_once):
            centre.read(slice(0, 1), np.zeros(1))
        assert pulls == (["read"] if whole else ["read"] * TRIES + ["asked"] * (1 + at_once))
        pulls.clear()


def test_a_copy_without_the_workers_own_update_is_not_taken(session_of) -> None:
    """A segment may show an older Θ than the master had when it answered; after three such tries it is asked for."""

    class Late(Memory):
        def __init__(self) -> None:
            self.gradient, self.shown = np.zeros(1), list[int]()

        def read(self, out: np.ndarray) -> int | None:
            return self.shown.pop(0)

    memory = Late()
    centre = MergedCentre(session_of(one_rank()), memory, cast(MasterLink, None))
    centre._ask = lambda out: 7  # type: ignore[method-assign]
    centre._at_least = 5
    for shown, taken, left in (([5, 6], 5, [6]), ([4, 6], 6, []), ([3, 4, 4, 6], 7, [6])):
        memory.shown = shown
        assert centre.read(slice(0, 1), np.zeros(1)) == taken and memory.shown == left


def test_a_worker_that_did_not_wait_for_its_grant_gets_none_for_its_next_round(session_of) -> None:
    """The master was busy while it came to its maximum; in its next round it computes at least n minibatches, too."""
    session = session_of(one_rank(), "algorithm.until_free=true", "algorithm.minibatches=2")
    centre = SimpleNamespace(updating=nullcontext, gradient=lambda worker, told: np.zeros(5))
    master, told = MergingMaster(session, cast(MergingCentre, centre), [1]), list[object]()
    master.tell = lambda worker, message: told.append(message)  # type: ignore[method-assign]
    master.handle(1, Claim())
    master.work()
    for message in (Ready(), Gradient(0, master.assigned[1], 20)):
        master.handle(1, message)
    master.work()
    assert [type(message) for message in told] == [Assignment, Assignment]
    master.handle(1, Ready())
    master.work()
    assert told[2:] == [Grant()]


@pytest.mark.parametrize("alone", [False, True])
def test_samples_that_are_handed_out_again_keep_their_place_in_the_schedule(session_of, alone: bool) -> None:
    """Rate, minibatch and workers are those of their stage, though later samples have been handed out before."""
    stages = "stages=[{at=0, workers=1}, {at=0.5, workers=2, learning_rate=0.01, minibatch=8}]"
    session = session_of(one_rank(), "training.minibatch=4", "training.learning_rate=0.5", stages)
    session.state.queue.next(32)
    session.state.queue.give_back(Work(0, 0, 8, 4))
    if alone:
        claimed = OwnMerged(session, lambda: None).claim()
        assert (claimed.works, claimed.learning_rate) == ([Work(0, 0, 4, 4)], 0.5)
        return
    master, told = MergingMaster(session, cast(MergingCentre, SimpleNamespace()), [1, 2]), dict[int, object]()
    master.tell = told.__setitem__  # type: ignore[method-assign]
    for worker in (2, 1):
        master.handle(worker, Claim())
        master.work()
    assert told == {1: Assignment(0, Work(0, 0, 4, 4), 0.5)}
