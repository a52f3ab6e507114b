"""Peers over MPI: identical replicas, conservation, repeatable order, stages, stopping, who is named when it fails."""

import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from mpitrain.checkpoint import last
from mpitrain.checkpoint.writer import Saver
from mpitrain.compression.thresholds import UNIT
from mpitrain.errors import Overdue, WireError
from mpitrain.flat import Layout, Parameter
from mpitrain.mpi import Transport
from mpitrain.protocols import PROTOCOLS
from mpitrain.protocols.peers import Peer, take_up
from mpitrain.sampling.batch import Batch, SampleForm

pytestmark = pytest.mark.mpi(min_size=2)

MODES = ["false", "true"]


class Field:
    """A loss ½‖θ − a‖² with `a` drawn from the minibatch's samples: every element of every gradient differs."""

    drawing = False

    def __init__(self, size: int = 300) -> None:
        self.layout = Layout([Parameter("x", (size,), ("constant", 0.5))])
        self.input_shape, self.classes, self.split = (1,), 2, 0
        self.total = np.zeros(size)  # of gradient sums

    def initial(self, seed, dtype=np.float64):
        """All one half."""
        return np.full(self.layout.size, 0.5, dtype)

    def loss_and_gradient(self, theta, gradient, batch, draws=None, on_ready=None):
        """The loss and its gradient."""
        target = np.random.default_rng(int(batch.inputs.sum())).standard_normal(theta.size)
        np.subtract(theta, target, out=gradient)
        self.total += gradient * len(batch.targets)
        for part in (slice(100, None), slice(0, 100)):
            on_ready(part)
        return 0.5 * float(np.dot(gradient, gradient))


class Uneven:
    """Samples that come at a speed of the rank's own."""

    shape, classes, in_memory = (1,), 2, True
    form = SampleForm(shape)

    def __init__(self, rank: int, samples: int = 160) -> None:
        self.samples, self._rank = samples, rank
        self.gathered: list[int] = []

    def gather(self, indices, out: Batch, place=None) -> Batch:
        """The indices, after up to 2 ms."""
        time.sleep(self._rank % 3 * 1e-3)
        self.gathered.extend(map(int, indices))
        out.inputs[:, 0] = indices
        out.targets[:] = 0
        return out


def peers(session_of, transport, *settings: str, samples: int = 160):
    """A session of all ranks at unequal speeds."""
    common = ("algorithm.name=sparse-delta", "training.minibatch=2", "training.epochs=3", "training.learning_rate=0.01")
    corpus = Uneven(transport.rank, samples)
    return session_of(transport, *common, *settings, network=Field(), corpus=corpus)


def alike(transport, text: str) -> bool:
    """Whether all ranks give the same text."""
    return len(set(transport.gather_texts(text, "the others"))) == 1


CHANGES = "stages=[{at=0.5, learning_rate=0.004}, {at=1, minibatch=5, rate_factor=0.5}, {at=2.2, minibatch=3}]"


@pytest.mark.parametrize(
    ("codec", "bits", "synchronous"),
    [*(("packed", 1, m) for m in MODES), *(("auto", b, m) for b in (1, 4) for m in MODES), ("packed", 32, "false")],
)
@pytest.mark.parametrize("turn", ["tau=1", "tau=3", "momentum=0.5"])
def test_replicas_are_identical_to_the_bit(
    session_of, transport, turn: str, synchronous: str, codec: str, bits: int
) -> None:
    """Across changes of η and of each rank's own threshold; and each sample is trained on once an epoch."""
    settings = (f"algorithm.synchronous={synchronous}", f"algorithm.codec={codec}", "algorithm.target_density=0.05")
    settings = (*settings, f"algorithm.bits={bits}", f"algorithm.{turn}")
    session = peers(session_of, transport, *settings, CHANGES, "algorithm.clip=3", "algorithm.check_every=0.01")
    PROTOCOLS["peers"](session)
    assert alike(transport, session.state.theta.tobytes().hex())
    assert alike(transport, session.state.beside["counts"].tobytes().hex())
    gathered = " ".join(map(str, session.learner.corpus.gathered))
    texts = transport.gather_texts(gathered, "the samples")
    assert Counter(int(word) for text in texts for word in text.split()) == Counter(dict.fromkeys(range(160), 3))
    if transport.rank == 0:
        assert session.counters.trained_now == 480
        told, length = session.counters.summary(), len(session.state.theta)
        of_a_minibatch = 8 * told["bytes_per_minibatch"] / told["bits_per_element"] / length
        assert 0 < of_a_minibatch < 0.5 and of_a_minibatch * (1 - 1e-9) <= told["density"] <= 1


@pytest.mark.parametrize(("synchronous", "bits"), [*((m, 1) for m in MODES), ("true", 2), ("false", 4), ("false", 32)])
@pytest.mark.parametrize(("tau", "combine"), [(1, "sum"), (1, "mean"), (3, "sum"), (3, "mean")])
def test_no_gradient_is_lost(session_of, transport, tau: int, combine: str, synchronous: str, bits: int) -> None:
    """Σ of all ranks' gradients is what the weights moved by, over η or over η/p, and what all residuals hold."""
    threshold, rate = (4.0 if bits in (1, 32) else 1.0), 0.01 / 2 / (transport.size if combine == "mean" else 1)
    settings = (f"algorithm.synchronous={synchronous}", f"algorithm.threshold={threshold}", "algorithm.patience=3")
    settings = (*settings, f"algorithm.tau={tau}", f"algorithm.combine={combine}")
    session = peers(session_of, transport, *settings, "algorithm.window=1", f"algorithm.bits={bits}")
    PROTOCOLS["peers"](session)
    held, total = session.state.local["residual"].copy(), session.network.total.copy()
    transport.sum(held, "the residuals")
    transport.sum(total, "the gradients")
    units, threshold = (1, UNIT / rate) if bits == 32 else (round(rate * threshold / UNIT), threshold)
    steps = (0.5 / UNIT - session.state.beside["counts"]) / units
    assert np.array_equal(steps, np.rint(steps)) and np.abs(steps).max() > 0
    assert np.allclose(steps * threshold + held, total, rtol=0, atol=1e-9)


def test_round_robin_order_repeats_bit_for_bit(session_of, transport) -> None:
    """Twice, with ranks that join later; residuals too."""
    results = []
    for _ in range(2):
        stages = f"stages=[{{at=0, workers=1}}, {{at=1.3, workers={transport.size}}}]"
        session = peers(session_of, transport, "algorithm.order=round-robin", stages, "algorithm.target_density=0.1")
        PROTOCOLS["peers"](session)
        results.append(session.state.theta.tobytes() + session.state.local["residual"].tobytes())
    assert results[0] == results[1]


@pytest.mark.parametrize("synchronous", MODES)
def test_a_later_stages_ranks_apply_all_and_train_when_it_begins(session_of, transport, synchronous: str) -> None:
    """With one rank for the first of three epochs, the others see only samples of the later ones."""
    stages = f"stages=[{{at=0, workers=1}}, {{at=1, workers={transport.size}}}]"
    session = peers(session_of, transport, f"algorithm.synchronous={synchronous}", stages)
    begun = []
    plain = session.learner.gradient
    session.learner.gradient = lambda theta, out, work, *rest: (
        begun.append(work.epoch) or plain(theta, out, work, *rest)
    )
    PROTOCOLS["peers"](session)
    assert alike(transport, session.state.theta.tobytes().hex())
    assert min(begun) == (0 if transport.rank == 0 else 1)


@pytest.mark.parametrize("synchronous", MODES)
def test_a_stop_on_one_rank_ends_all_drained(session_of, transport, synchronous: str) -> None:
    """Within a minibatch; what nobody trained on is left to hand out."""
    session = peers(session_of, transport, f"algorithm.synchronous={synchronous}", "training.epochs=1000")
    plain, last = session.learner.gradient, transport.size - 1

    def gradient(theta, out, work, *rest):
        session.stop.flag |= transport.rank == last and len(session.learner.corpus.gathered) > 20
        return plain(theta, out, work, *rest)

    session.learner.gradient = gradient
    PROTOCOLS["peers"](session)
    assert alike(transport, session.state.theta.tobytes().hex())
    done = np.array([len(session.learner.corpus.gathered)])
    transport.sum(done, "the samples")
    left = session.state.queue
    assert done[0] == left.position - sum(work.count for work in left.returned) < 160_000


@pytest.mark.parametrize("fewer", [False, True])
def test_a_resumed_run_has_all_of_the_residuals(session_of, transport, tmp_path: Path, fewer: bool) -> None:
    """The same ranks take up their own, to the bit; with half as many the sums agree."""
    folder = Path(transport.broadcast(str(tmp_path / "checkpoints").encode(), "the folder").decode())
    before = peers(session_of, transport)
    PROTOCOLS["peers"](before)
    before.saver = Saver(folder, before.network.layout, 3, 60.0, transport)
    last.write(before.saver, before.state, transport)
    transport.barrier("the checkpoint")
    ranks = max(transport.size // 2, 1) if fewer else transport.size
    part = Transport(transport.comm.Split(int(transport.rank >= ranks)), deadline=30)
    after = peers(session_of, part)
    after.resumed = next(folder.glob("[0-9]*"))
    held, kept = before.state.local["residual"].copy(), np.zeros_like(before.state.theta)
    if transport.rank < ranks:
        take_up(after)
        kept[:] = after.state.local["residual"]
    if not fewer:
        assert kept.tobytes() == held.tobytes()
    transport.sum(held, "before")
    transport.sum(kept, "after")
    assert np.abs(held).max() > 0 and np.allclose(held, kept, rtol=0, atol=1e-12 * np.abs(held).max())
    transport.barrier("the end")


def test_a_peer_with_another_network_is_named_on_every_rank(session_of, transport) -> None:
    """Before anything is exchanged."""
    session = peers(session_of, transport)
    if transport.rank == 1:
        session.network.layout = Layout([Parameter("x", (301,), ("constant", 0.5))])
    odd = "rank 1 has 301" if transport.size > 2 else "rank . has 30"
    with pytest.raises(WireError, match=odd):
        PROTOCOLS["peers"](session)


@pytest.mark.parametrize("synchronous", MODES)
def test_a_peer_that_stops_reading_is_named(session_of, transport, synchronous: str) -> None:
    """By all others, once the window is full, patience at its end and the deadline over."""
    short = Transport(transport.comm.Dup(), deadline=0.5)
    session = peers(session_of, short, f"algorithm.synchronous={synchronous}", "training.epochs=1000")
    if short.rank == 0:
        Peer(session)
    else:
        session.learner.corpus._rank = 0
        with pytest.raises(Overdue, match=r" for .*rank.*\b0\b"):
            _without_start(session)
    transport.barrier("the end")


def _without_start(session) -> None:
    """The training alone, without what is collective before."""
    from mpitrain.protocols.peers import orders

    peer = Peer(session)
    (orders.Synchronous if peer.in_step else orders.Asynchronous)(peer).train()
