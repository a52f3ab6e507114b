"""One peer against Strom's pseudo code (§2.6) in plain NumPy."""

import numpy as np
import pytest

from mpitrain.compression.thresholds import UNIT, round_threshold
from mpitrain.errors import TrainingFailed
from mpitrain.mpi import Transport
from mpitrain.protocols import PROTOCOLS


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
    session.monitor.progress.line = lines.append
    PROTOCOLS["peers"](session)
    assert len(lines) == 1 and "stage 1" in lines[0] and "2^-26" in lines[0]
