"""What every centre does, wherever it lives and whoever computes there: it hands samples out once, and adds up."""

from collections import Counter

import numpy as np
import pytest

from mpitrain.protocols import PROTOCOLS, server
from mpitrain.protocols.messages import Gradient
from mpitrain.protocols.server import adding, merging

pytestmark = pytest.mark.mpi(min_size=1)

SAMPLES, MINIBATCH = 103, 5
HOMES = [(f"algorithm.name={name}", how) for name in ("easgd", "asgd") for how in ("shared", "one-sided", "messages")]
SHARDED = ("algorithm.name=easgd", "one-sided", "algorithm.centre=sharded")


class Trial:
    """A worker that gives the centre 2^-k for its k-th minibatch, and knows what it claimed and read."""

    def __init__(self, session) -> None:
        self.session, self.claimed, self.read, self.own = session, [], [], 0.0

    def train(self, centre) -> None:
        """Through the worker's face alone."""
        size = self.session.state.theta.size
        while True:
            works, more, eta = centre.claim()
            if not works:
                assert not more  # no stages: there is nothing more at the end only
                break
            theta, d = np.empty(size), getattr(centre, "gradient", np.empty(size))
            indices = {centre.read(piece, theta[piece]) for piece in centre.pieces}
            assert (theta == theta[0]).all() or self.session.transport.size > 2  # others may add in between
            assert len(indices) == 1
            self.read.append((indices.pop(), theta.min() - 1.0, self.own))
            for work in works:
                self.claimed += [(work.epoch, start) for start in range(work.start, work.start + work.count)]
            gain = sum(work.count for work in works) / 128
            centre.settle()
            d[:] = gain if self.session.config.algorithm.additive else -gain / eta
            told = Gradient(self.read[-1][0] or 0, works[0])
            for piece in centre.pieces:
                centre.push(piece, d[piece], told)
                centre.progress()
            self.own += gain
        centre.complete()


def tried(session, monkeypatch) -> Trial:
    """A trial by every worker, on the protocol's own masters."""
    trial = Trial(session)
    session.learner.expect = lambda works: None

    def add(self, centre, first: int = 0) -> None:
        trial.train(centre)
        self._finish_trial(centre)

    def finish(self, centre) -> None:
        self.centre = centre
        self.rest, self.t = [], 0
        self.in_order = False
        self._finish()

    monkeypatch.setattr(adding.AddingWorker, "_finish_trial", finish, raising=False)
    monkeypatch.setattr(adding.AddingWorker, "run", add)
    monkeypatch.setattr(merging.MergingWorker, "train", lambda self: trial.train(self.centre))
    PROTOCOLS["server"](session)
    return trial


def everyone(transport, mine) -> list[str]:
    """All ranks' words."""
    return " ".join(transport.gather_texts(" ".join(map(str, mine)), "the trial")).split()


@pytest.mark.parametrize("home", [*HOMES, SHARDED])
def test_every_home(session_of, transport, monkeypatch, home: tuple[str, ...]) -> None:
    """Two epochs: each sample is claimed once an epoch, the centre ends as the exact sum of all that was pushed, and a
    worker reads what it has pushed. Versions, where there are any, never fall."""
    name, how, *more = home
    settings = (f"run.exchange={how}", "training.epochs=2", f"training.minibatch={MINIBATCH}")
    session = session_of(transport, name, *more, *settings, samples=SAMPLES)
    trial = tried(session, monkeypatch)
    claimed = Counter(everyone(transport, (f"{epoch}:{start}" for epoch, start in trial.claimed)))
    assert claimed == Counter({f"{epoch}:{start}": 1 for epoch in range(2) for start in range(SAMPLES)})
    versions = [index for index, _, _ in trial.read if index is not None]
    assert versions == sorted(versions)
    assert bool(versions) == (bool(trial.read) and not session.config.algorithm.additive)
    assert all(seen >= own - 1e-9 for _, seen, own in trial.read)
    if transport.rank == 0:
        assert session.state.queue.exhausted
        np.testing.assert_allclose(session.state.theta, 1.0 + 2 * SAMPLES / 128, rtol=1e-12)


def test_the_way_is_chosen_by_where_the_ranks_are(transport, monkeypatch) -> None:
    """One node: shared memory, unless it lacks room or vectors lie on GPUs; what is wished for comes first."""
    monkeypatch.setattr(transport, "nodes", 1)
    assert server.choose(transport, "one-sided", direct=False) == "one-sided"
    assert server.choose(transport, "auto", direct=True) == "messages"
    assert server.choose(transport, "auto", direct=False, shared=0) == "shared"
    assert server.choose(transport, "auto", direct=False, shared=1 << 60) == "messages"
