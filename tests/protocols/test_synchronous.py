"""Sequential SGD and its averages against direct evaluation."""

import numpy as np
import pytest

from mpitrain.errors import TrainingFailed
from mpitrain.mpi import Transport
from mpitrain.protocols import PROTOCOLS


def trained(session_of, *settings: str):
    """A session after its training."""
    session = session_of(Transport(deadline=10.0), *settings)
    PROTOCOLS["synchronous"](session)
    return session


def gradients(session, steps: int, minibatch: int):
    """The targets c of the toy's gradients θ − c, in the order they were trained on."""
    seen = np.array(session.learner.corpus.gathered[: steps * minibatch]).reshape(steps, minibatch)
    return seen.mean(axis=1) / 100


def test_nesterov_by_hand(session_of) -> None:
    """v ← μv − ηg(θ + μv); θ ← θ + v, 16 steps in plain NumPy."""
    session = trained(
        session_of, "algorithm.name=msgd", "training.minibatch=4", "training.epochs=1", "training.learning_rate=0.1"
    )
    theta, v = np.ones(5), np.zeros(5)
    for c in gradients(session, 16, 4):
        v = 0.9 * v - 0.1 * (theta + 0.9 * v - c)
        theta = theta + v
    assert np.allclose(session.state.theta, theta, rtol=1e-14)


def test_classical_by_hand(session_of) -> None:
    """v ← μv − ηg(θ); θ ← θ + v."""
    settings = ("algorithm.name=msgd", "algorithm.nesterov=false", "training.minibatch=4", "training.epochs=1")
    session = trained(session_of, *settings, "training.learning_rate=0.1")
    theta, v = np.ones(5), np.zeros(5)
    for c in gradients(session, 16, 4):
        v = 0.9 * v - 0.1 * (theta - c)
        theta = theta + v
    assert np.allclose(session.state.theta, theta, rtol=1e-14)


@pytest.mark.parametrize("name", ["averaged", "moving-average"])
def test_averages_beside_sgd(session_of, name: str) -> None:
    """z takes θ_t in just before update t + 1; the model is z, and θ is what plain SGD gives."""
    settings = ("training.minibatch=4", "training.epochs=1", "training.learning_rate=0.1")
    plain = trained(session_of, "algorithm.name=sgd", *settings)
    session = trained(session_of, f"algorithm.name={name}", *settings)
    assert np.array_equal(session.state.theta, plain.state.theta)
    theta, z = np.ones(5), np.ones(5)
    for t, c in enumerate(gradients(session, 16, 4)):
        rate = 1 / (t + 1) if name == "averaged" else 0.01
        z = (1 - rate) * z + rate * theta
        theta = theta - 0.1 * (theta - c)
    assert np.allclose(session.state.model, z, rtol=1e-14)


def test_rate_per_sample_is_the_sum(session_of) -> None:
    """η on the sum of 4 samples is 4η on their mean."""
    common = ("algorithm.name=sgd", "training.minibatch=4", "training.epochs=1")
    mean = trained(session_of, *common, "training.learning_rate=0.125")
    total = trained(session_of, *common, "training.learning_rate=0.03125", "training.rate_per=sample")
    assert np.allclose(mean.state.theta, total.state.theta, rtol=1e-14)


def test_a_loss_that_is_not_finite_stops_the_run(session_of) -> None:
    """With what may help."""
    with np.errstate(all="ignore"), pytest.raises(TrainingFailed, match="learning_rate"):
        trained(session_of, "algorithm.name=sgd", "training.learning_rate=1e30", "training.epochs=5")


@pytest.mark.parametrize("settings", [("sgd", "training.optimizer=adamw"), ("averaged",)])
def test_what_has_no_past_counts_its_steps_from_the_resume(session_of, settings: tuple[str, ...]) -> None:
    """AdamW's corrections for young moments go by its own steps, not by the training's; so does a mean, in which the
    parameters that it begins from would else count for all that were before."""
    name, *more = settings
    found = []
    for index in (0, 1000):
        common = (f"algorithm.name={name}", "training.epochs=1", "training.learning_rate=0.01")
        session = session_of(Transport(deadline=10.0), *common, *more)
        session.state.index = session.state.began = index
        PROTOCOLS["synchronous"](session)
        found.append(session.state.model.tobytes())
    assert found[0] == found[1]
