"""allreduce over MPI against one rank on the whole minibatch."""

import numpy as np
import pytest

from mpitrain.models.network import build
from mpitrain.mpi import Transport
from mpitrain.protocols import PROTOCOLS
from mpitrain.sampling.batch import SampleForm

pytestmark = pytest.mark.mpi(min_size=2)


class Noise:
    """Random images and targets."""

    shape, classes, samples, in_memory = (8, 8, 1), 10, 120, True
    form = SampleForm(shape)

    def __init__(self) -> None:
        rng = np.random.default_rng(3)
        self._inputs, self._targets = rng.standard_normal((120, 8, 8, 1)), rng.integers(10, size=120)

    def gather(self, indices, out, place=None):
        """Copy the samples."""
        out.inputs[:], out.targets[:] = self._inputs[indices], self._targets[indices]
        return out


def trained(session_of, transport, *settings: str, dropout: float = 0.0):
    """θ after 10 updates of a small network, buckets of a few layers."""
    preset, width = ("chan2014-dnn", 0.02) if dropout else ("digits-cnn", 0.5)
    network = build(preset, (8, 8, 1), 10, width=width, dropout=dropout)
    common = ("algorithm.name=allreduce", "algorithm.batch=global", "algorithm.bucket_mb=0.01", "training.minibatch=24")
    session = session_of(transport, *common, "training.epochs=2", *settings, network=network, corpus=Noise())
    PROTOCOLS["synchronous"](session)
    return session.state.theta


@pytest.mark.parametrize("minibatch", [24, 25, 7])
def test_sharing_a_minibatch_changes_nothing_but_rounding(session_of, transport, minibatch: int) -> None:
    """Shares of unequal size, and (on 8 ranks) fewer samples than ranks at the epoch's end, too."""
    settings = (f"training.minibatch={minibatch}", "training.learning_rate=0.01")
    shared = trained(session_of, transport, *settings)
    alone = trained(session_of, Transport(transport.comm.Split(transport.rank)), *settings)
    assert np.linalg.norm(shared - alone) / np.linalg.norm(alone) < 1e-12


def test_dropout_does_not_depend_on_the_number_of_ranks(session_of, transport) -> None:
    """Every rank drops for its share what one rank would have dropped."""
    shared = trained(session_of, transport, "training.learning_rate=0.01", dropout=0.5)
    alone = trained(
        session_of, Transport(transport.comm.Split(transport.rank)), "training.learning_rate=0.01", dropout=0.5
    )
    assert np.linalg.norm(shared - alone) / np.linalg.norm(alone) < 1e-12


def test_all_replicas_are_the_same_to_the_bit(session_of, transport) -> None:
    """And the same training gives the same bits again."""
    first, second = (trained(session_of, transport, "training.learning_rate=0.01") for _ in range(2))
    assert first.tobytes() == second.tobytes()
    assert len(set(transport.gather_texts(first.tobytes().hex(), "the replicas"))) == 1


def test_a_rate_per_sample_counts_the_whole_minibatch(session_of, transport) -> None:
    """η on the sum over all ranks."""
    mean = trained(session_of, transport, "training.learning_rate=0.01", "training.minibatch=24")
    total = trained(session_of, transport, f"training.learning_rate={0.01 / 24}", "training.rate_per=sample")
    assert np.linalg.norm(mean - total) / np.linalg.norm(mean) < 1e-12
