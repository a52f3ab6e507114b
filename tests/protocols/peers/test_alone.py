"""One peer against Strom's pseudo code (§2.6) in plain NumPy."""

import numpy as np
import pytest

from mpitrain import flat
from mpitrain.algorithms import SparseDelta
from mpitrain.compression.thresholds import UNIT, round_threshold
from mpitrain.errors import BadInput, TrainingFailed
from mpitrain.mpi import Transport
from mpitrain.protocols import PROTOCOLS
from mpitrain.protocols.peers import peer
from mpitrain.protocols.peers.rounds import Rounds


def trained(session_of, *settings: str):
    """A session of one rank after its training."""
    session = session_of(Transport(deadline=10.0), "algorithm.name=sparse-delta", *settings)
    PROTOCOLS["peers"](session)
    return session


@pytest.mark.parametrize("synchronous", ["true", "false"])
def test_the_pseudo_code(session_of, synchronous: str) -> None:
    """Residual of summed gradients; ±τ out of it where it exceeds τ; w ∓ ητ. All numbers are exact in float64."""
    settings = ("training.minibatch=4", "training.epochs=3", "training.learning_rate=0.0625", "algorithm.threshold=0.5")
    session = trained(session_of, *settings, f"algorithm.synchronous={synchronous}")
    targets = np.array(session.learner.corpus.gathered).reshape(-1, 4).mean(axis=1) / 100
    weights, residual, tau, eta = np.ones(5), np.zeros(5), 0.5, 0.0625 / 4
    for target in targets:
        residual += 4 * (weights - target)
        message = np.where(residual > tau, 1, np.where(residual < -tau, -1, 0))
        residual -= tau * message
        weights -= eta * tau * message
    assert np.array_equal(session.state.theta, weights) and len(targets) == 48
    assert np.array_equal(session.state.local["residual"], residual)


@pytest.mark.parametrize("bits", [2, 4, 32])
def test_the_pseudo_code_of_more_bits(session_of, bits: int) -> None:
    """±kτ, k = trunc(r/τ) up to 2^(b − 1); or n = round(ηr/u) units. η is 2⁻⁶, the threshold 2⁻⁵: exact in float64."""
    settings = ("training.minibatch=4", "training.epochs=3", "training.learning_rate=0.0625")
    session = trained(session_of, *settings, "algorithm.threshold=0.03125", f"algorithm.bits={bits}")
    targets = np.array(session.learner.corpus.gathered).reshape(-1, 4).mean(axis=1) / 100
    weights, residual, tau, eta, most = np.ones(5), np.zeros(5), 2.0**-5, 2.0**-6, 0
    for target in targets:
        residual += 4 * (weights - target)
        if bits == 32:
            sent = np.where(np.abs(residual) > tau, np.rint(eta * residual / UNIT) * UNIT / eta, 0)
        else:
            k = np.where(np.abs(residual) > tau, np.trunc(residual / tau), 0)
            most = max(most, np.abs(k).max())
            sent = tau * np.clip(k, -(2 ** (bits - 1)), 2 ** (bits - 1))
        residual -= sent
        weights -= eta * sent
    assert np.array_equal(session.state.theta, weights) and (bits == 32 or most > 8)
    assert np.array_equal(session.state.local["residual"], residual)
    assert np.abs(residual).max() > 0


@pytest.mark.parametrize("synchronous", ["true", "false"])
def test_a_stop_request_is_heeded_at_once(session_of, synchronous: str) -> None:
    """One that is there before a minibatch ends the training without it; in step, rounds are whole: after one."""
    session = session_of(
        Transport(deadline=10.0), "algorithm.name=sparse-delta", f"algorithm.synchronous={synchronous}"
    )
    session.stop.flag = True
    PROTOCOLS["peers"](session)
    minibatch = session.config.training.minibatch
    assert len(session.learner.corpus.gathered) == (minibatch if synchronous == "true" else 0)


def test_a_rate_per_sample_is_the_step_itself(session_of) -> None:
    """η multiplies sums: η per minibatch of 4 is 4η per sample."""
    common = ("training.minibatch=4", "training.epochs=2")
    mean = trained(session_of, *common, "training.learning_rate=0.125")
    total = trained(session_of, *common, "training.learning_rate=0.03125", "training.rate_per=sample")
    assert mean.state.theta.tobytes() == total.state.theta.tobytes()


def test_an_adaptive_threshold_and_clipping_are_at_work(session_of) -> None:
    """The residual stays within 2 thresholds; the threshold is that of the checkpoint."""
    settings = ("algorithm.target_density=0.25", "algorithm.clip=2", "training.epochs=20", "training.minibatch=2")
    state = trained(session_of, *settings, "algorithm.threshold=0.001").state
    threshold = state.local_numbers["threshold"]
    assert threshold > 0.002
    assert np.abs(state.local["residual"]).max() <= 2.2 * round_threshold(threshold)


def test_a_loss_that_is_not_finite_stops_the_run(session_of) -> None:
    """With what may help."""
    with np.errstate(all="ignore"), pytest.raises(TrainingFailed, match="learning_rate"):
        session = session_of(Transport(deadline=10.0), "algorithm.name=sparse-delta")
        session.network.loss_and_gradient = lambda *arguments, **settings: float("nan")
        PROTOCOLS["peers"](session)


def test_coarse_steps_are_warned_of_once_a_stage(session_of) -> None:
    """n < 16 in the second of two stages: one line."""
    lines = []
    settings = ("training.learning_rate=0.1", "stages=[{at=0.5, learning_rate=1e-6}]", "training.minibatch=8")
    session = session_of(Transport(deadline=10.0), "algorithm.name=sparse-delta", *settings)
    session.journal.progress.line = lines.append
    PROTOCOLS["peers"](session)
    assert len(lines) == 1 and "stage 1" in lines[0] and "2^-26" in lines[0]


STEPS = ("training.minibatch=4", "training.epochs=3", "training.learning_rate=0.0625", "algorithm.threshold=0.5")


def targets_of(session) -> np.ndarray:
    """What each minibatch of 4 pulls the weights to."""
    return np.array(session.learner.corpus.gathered).reshape(-1, 4).mean(axis=1) / 100


def test_three_local_steps(session_of) -> None:
    """x from w by SGD; r ← βr + (w − x)/η, what exceeds τ leaves it; w ∓ ητ. η = 2⁻⁶ of sums, 48 minibatches."""
    session = trained(session_of, *STEPS, "algorithm.tau=3", "algorithm.error_decay=0.75")
    weights, residual, tau, eta = np.ones(5), np.zeros(5), 0.5, 0.0625 / 4
    for three in targets_of(session).reshape(-1, 3):
        x = weights.copy()
        for target in three:
            x -= eta * 4 * (x - target)
        residual = 0.75 * residual + (weights - x) / eta
        message = np.sign(residual) * (np.abs(residual) > tau)
        residual -= tau * message
        weights -= eta * tau * message
    np.testing.assert_allclose(session.state.theta, weights, rtol=0, atol=1e-12)
    np.testing.assert_allclose(session.state.local["residual"], residual, rtol=0, atol=1e-10)
    assert np.abs(1 - weights).min() > 0.1


def test_one_local_step_is_a_gradient(session_of, monkeypatch) -> None:
    """τ = 1 by way of local steps: (w − x)/η is the sum of gradients, to rounding."""
    plain = trained(session_of, *STEPS)
    monkeypatch.setattr(peer, "Rounds", lambda queue, schedule, ranks, tau: Rounds(queue, schedule, ranks))
    stepped = trained(session_of, *STEPS, "algorithm.tau=2")
    np.testing.assert_allclose(stepped.state.theta, plain.state.theta, rtol=0, atol=1e-12)
    np.testing.assert_allclose(stepped.state.local["residual"], plain.state.local["residual"], rtol=0, atol=1e-9)


def test_momentum_of_what_is_not_sent(session_of) -> None:
    """u ← μu + g; r ← r + u; where r exceeds τ it is sent, and u is 0 (Lin et al. 2018). Exact in float64."""
    session = trained(session_of, *STEPS, "algorithm.momentum=0.5")
    weights, residual, u, tau, eta = np.ones(5), np.zeros(5), np.zeros(5), 0.5, 0.0625 / 4
    for target in targets_of(session):
        u = 0.5 * u + 4 * (weights - target)
        residual += u
        message = np.sign(residual) * (np.abs(residual) > tau)
        residual -= tau * message
        u[message != 0] = 0
        weights -= eta * tau * message
    assert np.array_equal(session.state.theta, weights)
    assert np.array_equal(session.state.local["residual"], residual)
    assert np.array_equal(session.state.local["velocity"], u)


@pytest.mark.parametrize("turn", ["momentum=0.5", "tau=3", "error_decay=0.75"])
def test_blocks_of_a_vector_are_updated_as_the_whole(session_of, monkeypatch, turn: str) -> None:
    """The last block of five weights is shorter than the two before it."""
    whole = trained(session_of, *STEPS, f"algorithm.{turn}")
    monkeypatch.setattr(flat, "BLOCK", 2)
    cut = trained(session_of, *STEPS, f"algorithm.{turn}")
    assert np.array_equal(cut.state.theta, whole.state.theta) and not np.array_equal(cut.state.theta, np.ones(5))
    assert all(np.array_equal(cut.state.local[name], each) for name, each in whole.state.local.items())


def test_the_largest_of_a_chunk(session_of) -> None:
    """One of the five elements a turn, unquantised: what is sent and what remains is everything. No figure says that
    there is a threshold."""
    session = trained(session_of, *STEPS, "algorithm.top_k=1", "algorithm.chunk=5", "algorithm.bits=32")
    assert session.counters.summary()["residual_norm"] > 0 and "threshold" not in session.counters.summary()
    weights, residual, eta = np.ones(5), np.zeros(5), 0.0625 / 4
    for target in targets_of(session):
        residual += 4 * (weights - target)
        place = np.argpartition(np.abs(residual), -1)[-1]
        sent = np.rint(eta * residual[place] / UNIT) * UNIT / eta
        residual[place] -= sent
        weights[place] -= eta * sent
    np.testing.assert_allclose(session.state.theta, weights, rtol=0, atol=1e-12)
    np.testing.assert_allclose(session.state.local["residual"], residual, rtol=0, atol=1e-9)


def test_the_density_falls_to_its_target(session_of) -> None:
    """From a quarter, geometrically: half-way it is √(0.25 · 0.01) = 0.05."""
    options = SparseDelta(target_density=0.01, density_warmup=4.0)
    assert [options.density_at(epoch) for epoch in (0, 2, 4, 9)] == pytest.approx([0.25, 0.05, 0.01, 0.01])


@pytest.mark.parametrize(
    ("key", "others"),
    [
        ("momentum", {"tau": 2, "momentum": 0.5}),
        ("target_density", {"top_k": 1, "target_density": 0.1}),
        ("clip", {"top_k": 1, "clip": 2.0}),
        ("density_warmup", {"density_warmup": 1.0}),
    ],
)
def test_keys_that_do_not_go_together(key: str, others: dict[str, float]) -> None:
    with pytest.raises(BadInput, match=f"algorithm.{key}: "):
        SparseDelta(**others).check()
