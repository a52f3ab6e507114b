"""The parameter server over MPI: who gets which samples, what a reader sees, who waits for whom."""

import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from mpitrain.protocols import PROTOCOLS
from mpitrain.protocols.server.by_messages import Snapshots
from mpitrain.protocols.server.versioned import SharedMemory, open_memory

pytestmark = pytest.mark.mpi(min_size=2)

HOW = ["shared", "one-sided", "messages"]


def everyone(transport, mine: list[int]) -> Counter:
    """How often each number occurs over all ranks."""
    texts = transport.gather_texts(" ".join(map(str, mine)), "the numbers")
    return Counter(int(word) for text in texts for word in text.split())


@pytest.mark.parametrize("how", HOW)
def test_every_sample_once_an_epoch(session_of, transport, how: str) -> None:
    """Server-dispensed minibatches, n = 3, an epoch that neither the minibatch nor n divides."""
    settings = ("training.minibatch=7", "training.epochs=2", "algorithm.minibatches=3", f"run.exchange={how}")
    session = session_of(transport, *settings, samples=500)
    PROTOCOLS["server"](session)
    assert everyone(transport, session.learner.corpus.gathered) == Counter(dict.fromkeys(range(500), 2))
    if transport.rank == 0:
        assert session.counters.trained_now == 1000
        assert session.counters.updates == session.state.index


def test_computing_until_granted_uses_every_sample_once(session_of, transport) -> None:
    """What a worker was given and did not use is given to others."""
    settings = ("algorithm.until_free=true", "algorithm.minibatches=2", "training.minibatch=3", "training.epochs=2")
    session = session_of(transport, *settings, samples=500)
    PROTOCOLS["server"](session)
    assert everyone(transport, session.learner.corpus.gathered) == Counter(dict.fromkeys(range(500), 2))


@pytest.mark.parametrize("how", HOW)
def test_round_robin_order_repeats_bit_for_bit(session_of, transport, how: str) -> None:
    """Also across a stage at which more workers join."""
    results = []
    for _ in range(2):
        settings = ("algorithm.order=round-robin", "algorithm.momentum=0.5", "training.epochs=3", f"run.exchange={how}")
        session = session_of(transport, *settings, "stages=[{at=0, workers=1}, {at=1.5, workers=7}]", samples=200)
        PROTOCOLS["server"](session)
        results.append(session.state.theta.copy())
    if transport.rank == 0:
        assert np.array_equal(*results)
        assert not np.array_equal(results[0], np.ones(5))


def test_one_worker_is_sgd_bit_for_bit(session_of, transport) -> None:
    """A stage of one worker, n = 1: what `ASGD_from_iter5` starts with."""
    session = session_of(transport, "stages=[{at=0, workers=1}]", "training.epochs=3", samples=100)
    PROTOCOLS["server"](session)
    alone = session_of(transport, "algorithm.name=sgd", "training.epochs=3", "training.learning_rate=0.03", samples=100)
    alone.members = [0]
    PROTOCOLS["synchronous"](alone)
    if transport.rank == 0:
        assert np.array_equal(session.state.theta, alone.state.theta)


def test_a_worker_never_pulls_a_model_without_its_own_last_update(session_of, transport, monkeypatch) -> None:
    """The index of a worker's k-th pull is at least k."""
    from mpitrain.protocols.server.merging import MergingWorker as Worker

    pulls: list[int] = []
    plain = Worker.pull

    def pull(self: Worker) -> int:
        index = plain(self)
        pulls.append(index)
        return index

    monkeypatch.setattr(Worker, "pull", pull)
    session = session_of(transport, "training.epochs=4", "training.minibatch=5", samples=300)
    PROTOCOLS["server"](session)
    assert all(index >= number for number, index in enumerate(pulls))


@pytest.mark.parametrize("how", ["shared", "one-sided"])
def test_a_reader_never_sees_a_torn_model(transport, how: str) -> None:
    """The server writes without pause; every element of Θ_i is i, whatever a reader gets and when."""
    size, rounds = 20_000, 400
    memory = open_memory(transport, how, size, np.dtype(np.float64), master=0)
    whole = 0
    transport.barrier("the start")
    if transport.rank == 0:
        for index in range(1, rounds + 1):
            with memory.writing(index):
                for part in range(0, size, 1000):
                    memory.theta[part : part + 1000] = index
            if index % 50 == 0:
                time.sleep(0.002)  # as between a real server's updates
    else:
        out, last = np.empty(size), 0
        while last < rounds:
            index = memory.read(out)
            if index is not None:
                assert (out == index).all() and index >= last
                last, whole = index, whole + 1
    transport.barrier("the end")
    memory.close()
    if transport.rank:
        assert whole > 0


@pytest.mark.parametrize("how", HOW)
def test_readers_get_the_server_s_bits(session_of, transport, how: str) -> None:
    """Two vectors an update are counted, one each way, by whatever means."""
    session = session_of(transport, f"run.exchange={how}", "training.epochs=1", samples=320)
    PROTOCOLS["server"](session)
    counts = np.array([transport.traffic.bytes_sent, transport.traffic.bytes_received]) * bool(transport.rank)
    transport.sum(counts, "the counts")
    if transport.rank == 0:
        vectors = session.state.index * 5 * 8
        assert vectors <= counts[0] <= vectors + 20_000 and vectors <= counts[1] <= vectors + 20_000


def wait_for(path: Path) -> None:
    """Until it is there, 20 s at most."""
    end = time.monotonic() + 20
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.01)


@pytest.mark.mpi(min_size=4)
def test_a_slow_worker_does_not_slow_the_others(session_of, transport, tmp_path) -> None:
    """One worker is held up in its first minibatch until the others have taken all the rest."""
    session = session_of(transport, "training.minibatch=4", "training.epochs=1", samples=600)
    folder = Path(transport.broadcast(str(tmp_path).encode(), "the folder").decode())
    begun, rest = folder / "begun", folder / "rest"
    gradient, trained = session.learner.gradient, session.counters.trained

    def held_up(*arguments, **more):
        if transport.rank == 1:
            begun.touch()
        wait_for(rest if transport.rank == 1 else begun)
        return gradient(*arguments, **more)

    def counted(*arguments):
        trained(*arguments)
        if session.counters.trained_now == 596:
            rest.touch()

    session.counters.trained = counted
    session.learner.gradient = held_up
    PROTOCOLS["server"](session)
    shares = [int(text) for text in transport.gather_texts(str(len(session.learner.corpus.gathered)), "the shares")]
    assert shares[1] == 4 and sum(shares) == 600


def test_a_non_finite_gradient_is_refused_by_the_server(session_of, transport, monkeypatch) -> None:
    """One worker's second gradient is broken; Θ stays finite and the worker is named."""
    session = session_of(transport, "training.epochs=2", samples=200)
    plain, calls = session.learner.gradient, []

    def gradient(theta, out, work, on_ready=None):
        loss = plain(theta, out, work, on_ready)
        calls.append(1)
        if transport.rank == 1 and len(calls) == 2:
            out[2] = np.nan
        return loss

    monkeypatch.setattr(session.learner, "gradient", gradient)
    named = []
    monkeypatch.setattr(session.journal, "write", lambda event, worker, **more: named.append(worker))
    PROTOCOLS["server"](session)
    if transport.rank == 0:
        assert set(named) <= {1} and np.isfinite(session.state.theta).all()
        assert len(named) == 1 or transport.size > 2  # others may have taken all the work before its second


def test_a_stop_asked_of_one_rank_stops_all_and_loses_no_sample(session_of, transport, tmp_path) -> None:
    """What was in flight is either trained or still to be handed out."""
    session = session_of(transport, "training.epochs=50", "algorithm.minibatches=3", samples=100)
    heard = Path(transport.broadcast(str(tmp_path).encode(), "the folder").decode()) / "heard"
    plain, turn, last = session.learner.gradient, session.monitor.turn, transport.size - 1

    def gradient(*arguments, **more):
        if len(session.learner.corpus.gathered) > 20:
            session.stop.flag |= transport.rank == last
            if transport.rank != last:
                wait_for(heard)
        return plain(*arguments, **more)

    session.learner.gradient = gradient
    session.monitor.turn = lambda *now, **how: (session.stop.flag and heard.touch(), turn(*now, **how))[1]
    PROTOCOLS["server"](session)
    if transport.rank == 0:
        ledger = session.state.queue
        waiting = sum(work.count for work in ledger.returned)
        assert session.counters.trained_now + waiting == ledger.position < 5000


def test_the_snapshot_path_answers_a_starving_reader(session_of, transport, monkeypatch) -> None:
    """Direct reads that always fail: every pull comes by message, and the training is the same."""
    monkeypatch.setattr(SharedMemory, "read", lambda self, out: None)
    sent = []
    plain = Snapshots.send
    monkeypatch.setattr(Snapshots, "send", lambda self, *now: (sent.extend(self.asked), plain(self, *now))[1])
    session = session_of(transport, "run.exchange=shared", "training.epochs=1", samples=100)
    PROTOCOLS["server"](session)
    if transport.rank == 0:
        assert len(sent) >= session.state.index and np.isfinite(session.state.theta).all()


@pytest.mark.parametrize("order", ["free", "round-robin"])
def test_a_worker_whose_stage_has_not_come_hears_of_the_end(session_of, transport, order: str) -> None:
    """It waits for work all the while: its own stop request ends the training in the first stage."""
    last, stages = transport.size - 1, "stages=[{at=0, workers=1}, {at=40, workers=7}]"
    session = session_of(transport, "training.epochs=50", stages, f"algorithm.order={order}", samples=1000)
    if transport.rank == last:
        poll, polls = transport.poll, []
        transport.poll = lambda *now: (polls.append(1), session.stop.__setattr__("flag", len(polls) > 3), poll(*now))[2]
    PROTOCOLS["server"](session)
    if transport.rank == 0:
        assert transport.size == 2 or session.state.queue.position < 40_000
