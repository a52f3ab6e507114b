"""Block momentum by messages: what an average is of, and what a training ends with."""

from unittest import mock

import numpy as np
import pytest

from mpitrain.algorithms.block_momentum import BlockRule
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


ENTRIES = ("algorithm.name=block-momentum", "algorithm.tau=3", "algorithm.momentum=0.5", *COMMON)


@pytest.mark.mpi(min_size=2)
def test_all_entries_unquantised_are_averages(session_of, transport) -> None:
    """To the unit of entries, 2⁻²⁶, of which every average may be off by a half."""
    samples = 8 * transport.size
    whole = trained(session_of(transport, *ENTRIES, samples=samples))
    keys = ("algorithm.top_k=100", "algorithm.chunk=100", "algorithm.bits=32", "algorithm.error_decay=1")
    entries = trained(session_of(transport, *ENTRIES, *keys, samples=samples))
    np.testing.assert_allclose(entries.state.theta, whole.state.theta, rtol=0, atol=4 * 2**-26)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("bits", [1, 2, 4])
def test_replicas_are_equal_and_nothing_is_lost(session_of, transport, bits: int) -> None:
    """β = 1, no momentum: Θ has moved by the mean of what the ranks have, less what they still hold."""
    keys = ("algorithm.momentum=0", "algorithm.top_k=5", "algorithm.chunk=50", f"algorithm.bits={bits}")
    session = session_of(transport, *ENTRIES, *keys, "algorithm.error_decay=1", samples=8 * transport.size)
    given, theta = np.zeros_like(session.state.theta), session.state.theta
    step = BlockRule.step

    def steps(rule, part, g, eta, *rest):  # type: ignore[no-untyped-def]
        given[part] += eta * g
        step(rule, part, g, eta, *rest)

    start = theta.copy()
    with mock.patch.object(BlockRule, "step", steps):
        trained(session)
    texts = transport.gather_texts(session.state.theta.tobytes().hex(), "the others' parameters")
    assert len(set(texts)) == 1
    sent = given - session.state.local["error"]
    transport.sum(sent, "what the others have sent")
    assert np.abs(given).max() > 0.01
    np.testing.assert_allclose(session.state.theta, start - sent / transport.size, rtol=0, atol=1e-9)
