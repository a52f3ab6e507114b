"""Elastic averaging without messages: one process, the queue of samples, the options."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from mpitrain import config as configuration
from mpitrain.algorithms.elastic import Easgd
from mpitrain.errors import BadInput
from mpitrain.mpi import Transport
from mpitrain.protocols import PROTOCOLS
from mpitrain.protocols.messages import Done, pack
from mpitrain.protocols.server.adding import AddingWorker, Phase
from mpitrain.protocols.server.by_messages import LocalCentre
from mpitrain.protocols.server.link import MasterLink
from mpitrain.sampling.queue import Queue, Work


def trained(session_of, *settings: str):
    """A session after its training by one process."""
    session = session_of(Transport(deadline=10.0), *settings)
    PROTOCOLS[session.config.algorithm.protocol](session)
    return session


COMMON = ("training.minibatch=7", "training.epochs=3", "training.learning_rate=0.1")


def test_downpour_with_one_worker_and_tau_1_is_sgd(session_of) -> None:
    """Bit for bit, once what is pending at the end has been pushed."""
    downpour = trained(session_of, "algorithm.name=downpour", *COMMON)
    sgd = trained(session_of, "algorithm.name=sgd", *COMMON)
    assert np.array_equal(downpour.state.theta, sgd.state.theta)
    assert downpour.learner.corpus.gathered == sgd.learner.corpus.gathered


def test_mdownpour_with_one_worker_is_nesterov_s_sgd(session_of) -> None:
    """Its model is y − δv, that of `msgd` θ."""
    one = trained(session_of, "algorithm.name=mdownpour", "algorithm.delta=0.9", *COMMON)
    other = trained(session_of, "algorithm.name=msgd", "algorithm.momentum=0.9", *COMMON)
    np.testing.assert_allclose(one.state.model, other.state.theta, rtol=1e-12)


@pytest.mark.parametrize(("name", "like"), [("adownpour", "averaged"), ("mvadownpour", "moving-average")])
def test_averages_with_one_worker_are_the_sequential_ones(session_of, name: str, like: str) -> None:
    """τ = 1; z and its clock are the same."""
    rate = ["algorithm.average_rate=0.02"] if name == "mvadownpour" else []
    one = trained(session_of, f"algorithm.name={name}", *rate, *COMMON)
    other = trained(session_of, f"algorithm.name={like}", *rate, *COMMON)
    assert np.array_equal(one.state.beside["average"], other.state.beside["average"])
    assert np.array_equal(one.state.theta, other.state.theta)


def test_no_moving_rate_is_sgd(session_of) -> None:
    """α = 0: the worker is SGD and x̃ stays where it was."""
    session = trained(session_of, "algorithm.name=easgd", "algorithm.alpha=0", *COMMON)
    sgd = trained(session_of, "algorithm.name=sgd", *COMMON)
    assert np.array_equal(session.state.local["x"], sgd.state.theta)
    assert np.array_equal(session.state.theta, np.ones(5))


def test_one_worker_is_algorithm_1_by_hand(session_of) -> None:
    """τ = 2, α = ¼, F = ½|x − m|² with every minibatch's own m."""
    session = session_of(
        Transport(deadline=10.0), "algorithm.name=easgd", "algorithm.tau=2", "algorithm.alpha=0.25", *COMMON
    )
    reference = session_of(Transport(deadline=10.0), "algorithm.name=sgd", *COMMON)
    PROTOCOLS["server"](session)
    x = centre = np.ones(5)
    for t, work in enumerate(Queue(64, 192).take(reference.schedule, 0, 10**6)[0]):
        mean = reference.learner.indices(work).mean() / 100
        d = 0.25 * (x - centre) if t % 2 == 0 else 0.0
        x, centre = x - d - 0.1 * (x - mean), centre + d
    np.testing.assert_allclose(session.state.local["x"], x, rtol=1e-12)
    np.testing.assert_allclose(session.state.theta, centre, rtol=1e-12)


@pytest.mark.parametrize("name", ["easgd", "eamsgd", "downpour", "admm"])
def test_a_move_stays_as_it_is_until_it_is_settled(session_of, monkeypatch, name: str) -> None:
    """A centre that takes what was pushed only when the worker settles gets the same moves, and comes to the same x̃."""
    settings = (f"algorithm.name={name}", "algorithm.tau=2", *COMMON)
    at_once, lent, add = trained(session_of, *settings), [], LocalCentre.push

    def settle(centre: LocalCentre) -> None:
        for piece, d, pushed in lent:
            assert np.array_equal(d, pushed)
            add(centre, piece, d)
        lent.clear()

    monkeypatch.setattr(LocalCentre, "push", lambda centre, piece, d: lent.append((piece, d, d.copy())))
    monkeypatch.setattr(LocalCentre, "settle", settle)
    monkeypatch.setattr(LocalCentre, "complete", settle)
    assert np.array_equal(trained(session_of, *settings).state.theta, at_once.state.theta)


def test_a_worker_goes_on_where_its_numbers_say(session_of) -> None:
    """With the samples in hand, and the common rate that it has heard of."""
    settings = ("algorithm.name=easgd", "algorithm.plateau=5", *COMMON)
    sessions = [session_of(Transport(deadline=10.0), *settings) for _ in range(2)]
    first, second = (AddingWorker(session, MasterLink(session, 0), 0, [0]) for session in sessions)
    first.t, first.turns, first.began, first.untold = 9, 3, 4, (2, 1.5)
    first.phase, first.rest, first.stock = Phase.STEPPING, [Work(1, 7, 7, 7)], [Work(1, 14, 7, 7), Work(1, 21, 3, 7)]
    sessions[0].state.rate.hear(2)
    first.note_numbers()
    second.restored(sessions[0].state.local_numbers)
    for name in ("t", "turns", "began", "untold", "phase", "rest", "stock"):
        assert getattr(second, name) == getattr(first, name), name
    assert sessions[1].state.rate.falls == 2


def test_a_checkpoint_has_what_its_workers_have_pushed(session_of) -> None:
    """The centre holds it before the worker says that it has copied its own vectors."""
    session, done = session_of(Transport(deadline=10.0), "algorithm.name=easgd", *COMMON), list[str]()

    def copy_own(state: object) -> None:
        done.append("copied")
        raise InterruptedError

    worker = AddingWorker(session, MasterLink(session, 0), 0, [0])
    worker.centre = SimpleNamespace(complete=lambda: done.append("complete"))
    worker.phase, session.saver = Phase.DONE, SimpleNamespace(copy_own=copy_own)
    with pytest.raises(InterruptedError):
        worker._give_piece()
    assert done == ["complete", "copied"]


def test_a_long_period_s_unused_samples_fit_in_a_message(session_of) -> None:
    """At a checkpoint and at the end a worker tells of them, each as it would have been trained on."""
    session = session_of(Transport(deadline=10.0), "algorithm.name=easgd", "training.minibatch=2", samples=30_000)
    worker = AddingWorker(session, MasterLink(session, 0), 0, [0])
    works, _ = Queue(30_000, 30_000).take(session.schedule, 8, 10**4)
    worker.rest, worker.stock = works[:5000], works[5000:]
    assert [minibatch for each in worker.unused for minibatch in each.minibatches()] == works
    assert len(pack(Done(worker.unused))) < 200
    assert len(pack(Done(tuple(works)))) > 1 << 16


@pytest.mark.parametrize("name", ["easgd", "eamsgd", "downpour", "admm", "easgd-sync", "eamsgd-sync", "mdownpour"])
@pytest.mark.parametrize("sampling", ["dispensed", "chunked"])
def test_every_sample_once_an_epoch(session_of, name: str, sampling: str) -> None:
    """Whatever the order."""
    chunks = ("algorithm.chunk=10", "algorithm.loaders=2") if sampling == "chunked" else ()
    settings = (f"algorithm.name={name}", f"algorithm.sampling={sampling}", *chunks)
    session = trained(session_of, *settings, *COMMON)
    assert Counter(session.learner.corpus.gathered) == Counter(dict.fromkeys(range(64), 3))
    assert session.counters.trained_now == 192


def test_no_centre_s_pull_and_no_momentum_is_the_same_run(session_of) -> None:
    """EAMSGD with δ = 0 is EASGD, asynchronous and synchronous, and ADMM's momentum variant with δ = 0 is ADMM's."""
    for one, other in (("easgd", "eamsgd"), ("easgd-sync", "eamsgd-sync")):
        plain = trained(session_of, f"algorithm.name={one}", *COMMON)
        momentum = trained(session_of, f"algorithm.name={other}", "algorithm.delta=0", *COMMON)
        assert plain.state.theta.tobytes() == momentum.state.theta.tobytes()


def test_a_worker_s_rate_falls_with_its_clock() -> None:
    """η/(1 + γt)^0.5."""
    assert Easgd(rate_decay=0.5).own_rate(0.3, 6) == pytest.approx(0.15)
    assert Easgd().own_rate(0.3, 6) == 0.3


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (["algorithm.alpha=-0.1"], "algorithm.alpha"),
        (["algorithm.beta=-1"], "algorithm.beta"),
        (["algorithm.tau=0"], "algorithm.tau"),
        (["training.learning_rate=0"], "training.learning_rate"),
        (["training.learning_rate=-1"], "training.learning_rate"),
        (["algorithm.alpha=0.1", "algorithm.rho=1"], "algorithm.rho"),
    ],
)
def test_bad_values_are_named(settings: list[str], key: str) -> None:
    """One line with the key."""
    with pytest.raises(BadInput, match=key):
        configuration.load(None, ["algorithm.name=easgd", *settings])


def test_a_period_longer_than_the_training_is_named() -> None:
    """64 samples, 3 epochs, minibatch 7 and 2 workers: 14 steps each."""
    config = configuration.load(None, ["algorithm.name=easgd", "algorithm.tau=15", *COMMON])
    steps = config.schedule(64).steps(2)
    assert steps == 14
    with pytest.raises(BadInput, match=r"algorithm\.tau = 15"):
        config.algorithm.check_steps(steps)


def test_moving_rates() -> None:
    """α, β = pα, ρ = α/η; β = 0.9 when none is given."""
    for setting, alpha in (("alpha=0.3", 0.3), ("beta=0.8", 0.2), ("rho=2", 0.1), ("tau=1", 0.225)):
        options = configuration.load(None, ["algorithm.name=easgd", f"algorithm.{setting}"]).algorithm
        assert options.moving_rate(0.05, 4) == pytest.approx(alpha)
