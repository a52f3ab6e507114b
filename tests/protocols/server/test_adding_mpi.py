"""Elastic averaging over MPI: what arrives at the centre, whose turn it is, who trains on what."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from mpitrain import checkpoint
from mpitrain.algorithms.stability import maps
from mpitrain.checkpoint import last
from mpitrain.checkpoint.writer import Saver
from mpitrain.device import CPU
from mpitrain.errors import WireError
from mpitrain.mpi.tags import Tag
from mpitrain.protocols import PROTOCOLS
from mpitrain.protocols.messages import TO_MASTER, TO_WORKER, Piece
from mpitrain.protocols.server.by_messages import AskingCentre, ServingCentre
from mpitrain.protocols.server.interface import Source
from mpitrain.protocols.server.link import MasterLink
from mpitrain.protocols.server.windows import WindowCentre
from mpitrain.sampling.queue import Queue

pytestmark = pytest.mark.mpi(min_size=2)

HOW = [("one-sided", "whole"), ("one-sided", "sharded"), ("messages", "whole")]
ORDER = "algorithm.order=round-robin"


def train(session_of, transport, *settings: str, **more):
    """A session after its training by all ranks."""
    session = session_of(transport, *settings, **more)
    PROTOCOLS[session.config.algorithm.protocol](session)
    return session


def numbers(transport, mine: np.ndarray) -> list[np.ndarray]:
    """Every rank's numbers, exactly."""
    texts = transport.gather_texts(" ".join(float(x).hex() for x in mine), "the numbers")
    return [np.array([float.fromhex(word) for word in text.split()]) for text in texts]


@pytest.mark.parametrize("ranks", ["whole", "sharded"])
def test_no_accumulate_is_lost(session_of, transport, ranks: str) -> None:
    """All but rank 0 push known vectors 1000 times; the centre is their exact sum."""
    size, times = 4099, 1000
    schedule = session_of(transport, "algorithm.name=easgd").schedule
    members = list(range(transport.size if ranks == "sharded" else 1))
    centre = WindowCentre(transport, members, size, np.dtype(np.float64), Source(Queue(64, 64), schedule, 1))
    centre.put(np.full(size, 0.5))
    vector = np.arange(size) * float(transport.rank)
    for _ in range(times * bool(transport.rank)):
        for piece in centre.pieces:
            centre.push(piece, vector[piece])
        centre.settle()
    centre.complete()
    transport.barrier("the pushes")
    out = np.empty(size)
    centre.copy(out)
    assert np.array_equal(out, 0.5 + times * np.arange(size) * sum(range(transport.size)))
    transport.barrier("the comparison")
    centre.close()


def test_a_damaged_piece_names_its_sender(session_of, transport) -> None:
    """By messages: of a move its worker, of the centre rank 0; and one of another length."""
    session = session_of(transport, "algorithm.name=easgd")
    size, source = session.state.theta.size, Source(Queue(64, 64), session.schedule, 1)
    d, whole = np.arange(float(size)), slice(0, size)
    if transport.rank == 0:
        serving = ServingCentre(transport, [1], d, source)
        for said in (
            "sent a move of the centre that does not match",
            f"sends 8 bytes of a move of the centre, expected {8 * size}",
        ):
            told = TO_MASTER.receive(transport, 1, "a move").message
            with pytest.raises(WireError, match=f"rank 1 {said}"):
                serving.handle(1, told)
        transport.receive_into(1, Tag.VECTOR, np.empty(1), "the move")
        for length in (d.nbytes, 8):
            TO_WORKER.post(transport, 1, Piece(length, 1))
        transport.wait(transport.send(1, Tag.VECTOR, d), "a piece to leave")
    elif transport.rank == 1:
        asking = AskingCentre(transport, MasterLink(session, 0), d, source, 0)
        asking._vectors._checksum = lambda vector: 1
        asking.push(whole, d)
        asking.push(slice(0, 1), d[:1])
        asking.settle()
        asking._vectors._checksum = CPU.checksum
        for said in (
            "sent a copy of the centre that does not match",
            f"sends 8 bytes of a copy of the centre, expected {8 * size}",
        ):
            with pytest.raises(WireError, match=f"rank 0 {said}"):
                asking.read(whole, d)
    transport.flush()
    transport.barrier("the end")


@pytest.mark.parametrize(("how", "where"), HOW)
@pytest.mark.parametrize("name", ["easgd", "eamsgd", "downpour", "admm"])
def test_every_sample_once_an_epoch(session_of, transport, name: str, how: str, where: str) -> None:
    """Nobody dispenses them, and an epoch that neither the minibatch nor τ divides."""
    settings = (f"algorithm.name={name}", f"run.exchange={how}", f"algorithm.centre={where}", "algorithm.tau=3")
    session = train(session_of, transport, *settings, "training.minibatch=7", "training.epochs=2", samples=500)
    texts = transport.gather_texts(" ".join(map(str, session.learner.corpus.gathered)), "the samples")
    assert Counter(int(word) for text in texts for word in text.split()) == Counter(dict.fromkeys(range(500), 2))
    if transport.rank == 0:
        assert session.counters.trained_now == 1000 and session.state.queue.exhausted
        assert np.isfinite(session.state.theta).all() and not np.array_equal(session.state.theta, np.ones(5))


@pytest.mark.parametrize(("how", "where"), HOW)
@pytest.mark.parametrize("name", ["easgd", "eamsgd", "downpour", "admm"])
def test_round_robin_order_repeats_bit_for_bit(session_of, transport, name: str, how: str, where: str) -> None:
    """In whatever way vectors travel, which gives the same bits too."""
    own = (f"algorithm.centre={where}", "algorithm.tau=4")
    models = []
    for way in (how, how, "one-sided"):
        settings = (f"algorithm.name={name}", ORDER, "training.epochs=3", "training.minibatch=3", f"run.exchange={way}")
        models.append(train(session_of, transport, *settings, *own, samples=200).state.model.copy())
    if transport.rank == 0:
        assert models[0].tobytes() == models[1].tobytes() == models[2].tobytes()
        assert np.isfinite(models[0]).all() and not np.array_equal(models[0], np.ones(5))


@pytest.mark.parametrize("name", ["mdownpour", "adownpour", "mvadownpour"])
def test_the_server_s_rules_repeat_bit_for_bit(session_of, transport, name: str) -> None:
    """In round-robin order; and the master's rule is what moves Θ."""
    models = []
    for _ in range(2):
        settings = (f"algorithm.name={name}", ORDER, "training.epochs=2", "training.minibatch=5")
        models.append(train(session_of, transport, *settings, samples=100).state.model.copy())
    if transport.rank == 0:
        assert models[0].tobytes() == models[1].tobytes() and not np.array_equal(models[0], np.ones(5))


@pytest.mark.parametrize("how", ["one-sided", "messages"])
def test_workers_join_at_their_stage(session_of, transport, how: str) -> None:
    """Before it they take no samples; in round-robin order the run repeats all the same."""
    stages = "stages=[{at=0, workers=1}, {at=1.5, workers=7}, {at=2.5, workers=1}]"
    models = []
    for _ in range(2):
        settings = ("algorithm.name=easgd", ORDER, "training.epochs=3", f"run.exchange={how}", "algorithm.tau=2")
        session = train(session_of, transport, *settings, "training.minibatch=4", stages, samples=200)
        models.append(session.state.theta.copy())
    counts = [int(text) for text in transport.gather_texts(str(len(session.learner.corpus.gathered)), "the counts")]
    assert sum(counts) == 600 and counts[1] >= 300 + 100 - 2 * 4 * 2 and counts[1] > max([0, *counts[2:]])
    if transport.rank == 0:
        assert models[0].tobytes() == models[1].tobytes()


def test_free_workers_join_at_their_stage(session_of, transport) -> None:
    """Rank 1 alone trains the first half."""
    stages = "stages=[{at=0, workers=1}, {at=1, workers=7}]"
    session = train(session_of, transport, "algorithm.name=easgd", "training.epochs=2", stages, samples=640)
    counts = [int(text) for text in transport.gather_texts(str(len(session.learner.corpus.gathered)), "the counts")]
    assert sum(counts) == 1280 and counts[1] >= 640


class OneNumber:
    """A "network" of F(x) = x²/2, whatever the minibatch."""

    drawing = False

    def __init__(self) -> None:
        from mpitrain.flat import Layout, Parameter

        self.layout = Layout([Parameter("x", (1,), ("constant", 0.0))])

    def initial(self, seed: int, dtype: type = np.float64) -> np.ndarray:
        """Seeds name starting points."""
        return np.array([10.0 * seed - 13.0], dtype)

    def loss_and_gradient(self, theta, gradient, batch, draws=None, on_ready=None):
        """∇F = x."""
        np.copyto(gradient, theta)
        loss = 0.5 * float(theta[0] ** 2)
        if on_ready:
            on_ready(slice(0, 1))
        return loss


@pytest.mark.parametrize("how", ["one-sided", "messages"])
def test_round_robin_easgd_is_the_power_of_a_linear_map(session_of, transport, how: str) -> None:
    """τ = 1, x¹ … xᵖ and x̃ from different starts: after r rounds the state is (Fᵖ…F¹)ʳ of the first."""
    p, rounds, eta, alpha = transport.size - 1, 12, 0.05, 0.25
    settings = ("algorithm.name=easgd", ORDER, "algorithm.tau=1", "algorithm.start=different", f"run.exchange={how}")
    more = (f"algorithm.alpha={alpha}", f"training.learning_rate={eta}", "training.minibatch=1", "training.epochs=1")
    session = train(session_of, transport, *settings, *more, samples=p * rounds, network=OneNumber())
    worker = transport.rank > 0
    state = [x[0] for x in numbers(transport, session.state.local["x"] if worker else session.state.theta)]
    F = np.eye(p + 1)
    for i in range(p):
        F = maps.easgd(i, p, np.float64(eta), np.float64(alpha)) @ F
    start = np.array([10.0 * (2 + i) - 13.0 for i in range(p)] + [-3.0])
    expected = np.linalg.matrix_power(F, rounds) @ start
    np.testing.assert_allclose([*state[1:], state[0]], expected, rtol=1e-12)


def test_admm_round_robin_is_its_equations(session_of, transport) -> None:
    """Equations 9 to 11 with τ = 1, one worker's turn after another; x̃ is the mean of all xⁱ − λⁱ."""
    p, rounds, eta, rho = transport.size - 1, 10, 0.05, 0.8
    settings = ("algorithm.name=admm", ORDER, "algorithm.tau=1", "algorithm.start=different", f"algorithm.rho={rho}")
    more = (f"training.learning_rate={eta}", "training.minibatch=1", "training.epochs=1")
    session = train(session_of, transport, *settings, *more, samples=p * rounds, network=OneNumber())
    x, lam, held, centre = np.array([10.0 * (2 + i) - 13.0 for i in range(p)]), np.zeros(p), np.full(p, -3.0), -3.0
    for _ in range(rounds):
        for i in range(p):
            lam[i] -= x[i] - centre
            x[i] = (x[i] - eta * x[i] + eta * rho * (lam[i] + centre)) / (1 + eta * rho)
            centre += (x[i] - lam[i] - held[i]) / p
            held[i] = x[i] - lam[i]
    result = numbers(transport, session.state.local["x"] if transport.rank else session.state.theta)
    np.testing.assert_allclose([each[0] for each in result], [centre, *x], rtol=1e-11)
    assert centre == pytest.approx(np.mean(x - lam))


@pytest.mark.parametrize("how", ["one-sided", "messages"])
def test_admm_round_robin_is_what_stability_analyses(session_of, transport, how: str) -> None:
    """Trained at the paper's unstable setting, x̃ is that of the composite map after as many turns."""
    p, rounds, eta, rho = transport.size - 1, 20, 0.001, 2.5
    settings = ("algorithm.name=admm", ORDER, "algorithm.tau=1", f"algorithm.rho={rho}", f"run.exchange={how}")
    more = (f"training.learning_rate={eta}", "training.minibatch=1", "training.epochs=1")
    session = train(session_of, transport, *settings, *more, samples=p * rounds, network=OneNumber())
    if transport.rank == 0:
        expected = maps.centre_trajectory(maps.admm, p, eta, rho, p * rounds)
        assert session.state.theta[0] == pytest.approx(expected[-1] * -3.0 / 1000, rel=1e-11)


@pytest.mark.parametrize("how", ["one-sided", "messages"])
def test_without_momentum_eamsgd_is_easgd(session_of, transport, how: str) -> None:
    """δ = 0 in round-robin order, bit for bit; and with α = 0 every worker is an SGD of its own."""
    common = (ORDER, "training.epochs=2", "training.learning_rate=0.1", "training.minibatch=4", f"run.exchange={how}")
    plain = train(session_of, transport, "algorithm.name=easgd", *common, samples=300)
    momentum = train(session_of, transport, "algorithm.name=eamsgd", "algorithm.delta=0", *common, samples=300)
    assert plain.state.theta.tobytes() == momentum.state.theta.tobytes()
    alone = train(session_of, transport, "algorithm.name=easgd", "algorithm.alpha=0", *common, samples=300)
    if transport.rank == 0:
        assert np.array_equal(alone.state.theta, np.ones(5))
        return
    x = np.ones(5)
    gathered = alone.learner.corpus.gathered
    for begin in range(0, len(gathered), 4):  # 300 is a multiple of 4: no short minibatches
        x = x - 0.1 * (x - np.mean(gathered[begin : begin + 4]) / 100)
    np.testing.assert_allclose(alone.state.local["x"], x, rtol=1e-12)


@pytest.mark.parametrize("how", ["one-sided", "messages"])
def test_two_vectors_an_exchange(session_of, transport, how: str) -> None:
    """One each way; messages beside, of which there are a few a second."""
    settings = ("algorithm.name=easgd", "training.minibatch=1", "training.epochs=1", "algorithm.tau=2")
    size = 5000
    session = session_of(transport, *settings, f"run.exchange={how}", samples=200, network=type(Wide())(size))
    before = np.array([transport.traffic.bytes_sent, transport.traffic.bytes_received])
    PROTOCOLS["server"](session)
    counts = np.array([transport.traffic.bytes_sent, transport.traffic.bytes_received]) - before
    counts = counts * bool(transport.rank)
    transport.comm.Allreduce(np.zeros(1), np.zeros(1))
    transport.sum(counts, "the counts")
    if transport.rank == 0:
        exchanges = session.state.index
        assert exchanges >= 100
        for count in counts:
            assert exchanges * size * 8 <= count <= exchanges * size * 8 * 1.05


class Wide:
    """A "network" of many parameters that pulls all to 0."""

    drawing = False

    def __init__(self, size: int = 1) -> None:
        from mpitrain.flat import Layout, Parameter

        self.layout = Layout([Parameter("x", (size,), ("constant", 1.0))])

    def initial(self, seed: int, dtype: type = np.float64) -> np.ndarray:
        """All ones."""
        return np.ones(self.layout.size, dtype)

    def loss_and_gradient(self, theta, gradient, batch, draws=None, on_ready=None):
        """∇F = x."""
        np.copyto(gradient, theta)
        if on_ready:
            on_ready(slice(0, theta.size))
        return 1.0


@pytest.mark.parametrize("delta", [None, 0.9])
def test_synchronous_equals_the_equations(session_of, transport, delta: float | None) -> None:
    """Equations 5 (7 with δ) and 6 for 50 steps with the elastic move every third; all hold the same x̃."""
    p, eta, alpha, tau, steps, size = transport.size, 0.1, 0.2 / transport.size, 3, 50, 2
    name = "easgd-sync" if delta is None else "eamsgd-sync"
    momentum = [] if delta is None else [f"algorithm.delta={delta}"]
    settings = (f"algorithm.name={name}", f"algorithm.tau={tau}", f"algorithm.alpha={alpha}", *momentum)
    more = (f"training.learning_rate={eta}", f"training.minibatch={size}", "training.epochs=1")
    session = train(session_of, transport, *settings, *more, samples=steps * size * p)
    orders = transport.gather_texts(" ".join(map(str, session.learner.corpus.gathered)), "the samples")
    m = np.array([[int(word) for word in text.split()] for text in orders]).reshape(p, steps, size).mean(axis=2) / 100
    x, v, centre = np.ones(p), np.zeros(p), 1.0
    for t in range(steps):
        g = x + (delta or 0.0) * v - m[:, t]
        pull = alpha * (x - centre) * (t % tau == 0)
        centre += (t % tau == 0) * p * alpha * (x.mean() - centre)
        v = (delta or 0.0) * v - eta * g
        x = x + v - pull
    np.testing.assert_allclose(session.state.local["x"], np.full(5, x[transport.rank]), rtol=1e-12)
    np.testing.assert_allclose(session.state.theta, np.full(5, centre), rtol=1e-12)
    assert len(set(transport.gather_texts(session.state.theta.tobytes().hex(), "the centres"))) == 1


def stop_after(session, samples: int) -> None:
    """Ask for the end from this rank once it has gathered so many samples."""
    plain = session.learner.gradient

    def gradient(*arguments, **more):
        session.stop.flag |= len(session.learner.corpus.gathered) > samples
        return plain(*arguments, **more)

    session.learner.gradient = gradient


def with_saver(session, folder: Path, resume: bool = False):
    """The session with a place for checkpoints, or with the state of the newest one there."""
    session.saver = Saver(folder, session.network.layout, 3, 60.0, session.transport)
    if resume:
        session.resumed = checkpoint.newest(folder)[0]
        checkpoint.load_state(session.resumed, session.state, session.network.layout)
        session.counters.resume(session.state)
    return session


@pytest.fixture
def shared_folder(transport, tmp_path: Path) -> Path:
    """That of checkpoints in rank 0's temporary folder, on all ranks."""
    return Path(transport.broadcast(str(tmp_path / "checkpoints").encode(), "the folder").decode())


@pytest.mark.parametrize("how", ["one-sided", "messages"])
@pytest.mark.parametrize("name", ["eamsgd", "downpour", "admm", "eamsgd-sync"])
def test_a_resumed_run_ends_where_the_uninterrupted_one_does(
    session_of,
    transport,
    shared_folder: Path,
    name: str,
    how: str,
) -> None:
    """Stopped by one rank's signal in mid-period, in round-robin order: bit for bit, and no sample twice."""
    order = [] if name.endswith("sync") else [ORDER]
    settings = (f"algorithm.name={name}", *order, "training.epochs=4", "training.minibatch=4", "algorithm.tau=5")
    common = (*settings, f"run.exchange={how}", "algorithm.rate_decay=0.1", "algorithm.plateau=3")
    whole = train(session_of, transport, *common, samples=100).state.theta.copy()

    first = with_saver(session_of(transport, *common, samples=100), shared_folder)
    if transport.rank == 1:
        stop_after(first, 30)
    PROTOCOLS[first.config.algorithm.protocol](first)
    first.state.trained = first.counters.trained_now
    last.write(first.saver, first.state, transport)
    transport.barrier("the checkpoint")
    second = with_saver(session_of(transport, *common, samples=100), shared_folder, resume=True)
    PROTOCOLS[second.config.algorithm.protocol](second)

    seen = [*first.learner.corpus.gathered, *second.learner.corpus.gathered]
    texts = transport.gather_texts(" ".join(map(str, seen)), "the samples")
    if transport.rank == 0:
        assert 0 < first.state.queue.position < 400
    assert Counter(int(word) for text in texts for word in text.split()) == Counter(dict.fromkeys(range(100), 4))
    if transport.rank == 0:
        assert second.state.theta.tobytes() == whole.tobytes()


@pytest.mark.mpi(min_size=4)
def test_other_ranks_restart_at_the_centre(session_of, transport, shared_folder: Path) -> None:
    """A checkpoint of all ranks, resumed by fewer: x = x̃, v = 0, and no sample is lost or seen twice."""
    from mpi4py import MPI

    from mpitrain.mpi import Transport

    settings = ("algorithm.name=eamsgd", "training.epochs=4", "training.minibatch=4", "algorithm.tau=5")
    first = with_saver(session_of(transport, *settings, samples=200), shared_folder)
    if transport.rank:
        stop_after(first, 5)  # samples, whoever comes first: one rank alone could find all 800 taken by the others
    PROTOCOLS["server"](first)
    first.state.trained = first.counters.trained_now
    last.write(first.saver, first.state, transport)
    seen = list(first.learner.corpus.gathered)
    few = (
        Transport(MPI.COMM_WORLD.Split(0 if transport.rank < 2 else MPI.UNDEFINED), deadline=30)
        if (transport.rank < 2)
        else MPI.COMM_WORLD.Split(MPI.UNDEFINED)
    )
    if transport.rank < 2:
        second = with_saver(session_of(few, *settings, samples=200), shared_folder, resume=True)
        centre = second.state.theta.copy()
        if transport.rank == 1:
            plain, starts = second.learner.gradient, []

            def gradient(at, *rest):
                starts.append(at.copy())
                return plain(at, *rest)

            second.learner.gradient = gradient
        PROTOCOLS["server"](second)
        seen += second.learner.corpus.gathered
        if transport.rank == 1:
            assert np.array_equal(starts[0], centre)
    texts = transport.gather_texts(" ".join(map(str, seen)), "the samples")
    assert Counter(int(word) for text in texts for word in text.split()) == Counter(dict.fromkeys(range(200), 4))


@pytest.mark.parametrize("how", ["one-sided", "messages"])
def test_a_checkpoint_in_mid_run_is_a_moment_of_it(session_of, transport, shared_folder: Path, how: str) -> None:
    """Taken while the workers run in round-robin order; from it the rest of the run gives the same bits."""
    settings = ("algorithm.name=eamsgd", ORDER, "training.epochs=20", "training.minibatch=4", f"run.exchange={how}")
    session = with_saver(session_of(transport, *settings, samples=200), shared_folder)
    if transport.rank == 0:
        plain, left = session.monitor.turn, [True]

        def turn(trainer, **how) -> bool:
            if left and session.counters.trained_now:
                left.clear()
                session.monitor.checkpoint(trainer.save)
            return plain(trainer, **how)

        session.monitor.turn = turn
    PROTOCOLS["server"](session)
    session.saver.settle()
    transport.barrier("the checkpoint")
    second = with_saver(session_of(transport, *settings, samples=200), shared_folder, resume=True)
    position = second.state.queue.position
    PROTOCOLS["server"](second)
    assert position > 0
    if transport.rank == 0:
        assert second.state.theta.tobytes() == session.state.theta.tobytes()
