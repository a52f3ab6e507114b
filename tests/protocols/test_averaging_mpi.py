"""Block momentum by messages: what an average is of, and what a training ends with."""

import numpy as np
import pytest

from mpitrain.protocols import PROTOCOLS

COMMON = ("training.minibatch=4", "training.epochs=2", "training.learning_rate=0.1")


def trained(session):
    PROTOCOLS[session.config.algorithm.protocol](session)
    return session


@pytest.mark.mpi(min_size=2)
def test_averaging_every_step_is_synchronous_sgd(session_of, transport) -> None:
    """μ = 0, ζ = 1, τ = 1, SGD inside: `allreduce` without momentum, on minibatches that divide evenly."""
    samples = 8 * transport.size
    settings = ("algorithm.name=block-momentum", "algorithm.tau=1", "algorithm.momentum=0", *COMMON)
    ours = trained(session_of(transport, *settings, samples=samples))
    sums = ("algorithm.name=allreduce", "algorithm.momentum=0", *COMMON)
    theirs = trained(session_of(transport, *sums, samples=samples))
    np.testing.assert_allclose(ours.state.theta, theirs.state.theta, rtol=1e-12)


@pytest.mark.mpi(min_size=2)
def test_the_last_steps_are_averaged_too(session_of, transport) -> None:
    """Six steps with τ = 4: the two after the first average are in Θ, which all ranks agree on."""
    settings = ("algorithm.name=block-momentum", "algorithm.tau=4", "algorithm.momentum=0", *COMMON[1:])
    samples = 3 * 4 * transport.size
    session = trained(session_of(transport, *settings, "training.minibatch=4", samples=samples))
    assert session.state.index == 6 and session.state.local_numbers["since"] == 0
    np.testing.assert_allclose(session.state.local["x"], session.state.theta)
    texts = transport.gather_texts(session.state.theta.tobytes().hex(), "the others' parameters")
    assert len(set(texts)) == 1
