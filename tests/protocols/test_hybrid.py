"""Hybrid parallelism against one rank, on sub-communicators of every size that the ranks of this run allow."""

import tracemalloc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from mpitrain.algorithms.optimizers.sgd import krizhevsky
from mpitrain.models.layers.convolution import ConvolutionOptions as Convolution
from mpitrain.models.layers.dropout import DropoutOptions as Dropout
from mpitrain.models.layers.fully_connected import FullyConnectedOptions as FullyConnected
from mpitrain.models.layers.relu import ReluOptions as Relu
from mpitrain.models.layers.sigmoid import SigmoidOptions as Sigmoid
from mpitrain.models.losses import LOSSES
from mpitrain.models.model import Draws
from mpitrain.models.network import Network
from mpitrain.protocols import hybrid, synchronous
from mpitrain.protocols.hybrid.connected import order_of
from mpitrain.protocols.hybrid.exchange import KINDS, Transfers
from mpitrain.sampling.batch import Batch, SampleForm
from mpitrain.sampling.queue import Work
from mpitrain.sampling.rng import stream
from mpitrain.training.context import Session

SCHEMES = [("a", 0), ("b", 0), ("c", 0), ("c", 2)]
STEPS = 10


class Random:
    """Images [8, 8, 2] and classes 0 to 8, drawn once."""

    shape, classes, in_memory = (8, 8, 2), 9, True
    form = SampleForm(shape)

    def __init__(self, samples: int) -> None:
        rng = stream(7, "test")
        self.samples = samples
        self.inputs = rng.standard_normal((samples, *self.shape))
        self.targets = rng.integers(0, self.classes, samples).astype(np.int32)

    def gather(self, indices: np.ndarray, out: Batch, place: Any = None) -> Batch:
        """Copies of the images."""
        out.inputs[:], out.targets[:] = self.inputs[indices], self.targets[indices]
        return out


def small(output: str = "softmax", dropout: float = 0.0, l2: float = 0.0, l2_biases: bool = False) -> Network:
    """Two convolutions and three fully connected layers of 13, 11 and 9 units, which nothing up to 8 divides."""
    layers = [
        *(Convolution(5, 3, pad=1, pool=2, bias=0.1), Relu(), Dropout(dropout / 2), Convolution(6, 3), Relu()),
        *(FullyConnected(13), Relu(), Dropout(dropout), FullyConnected(11), Sigmoid(), Dropout(dropout)),
        FullyConnected(9, gain=1.0),
    ]
    return Network([layer.make() for layer in layers], Random.shape, LOSSES[output], l2=l2, l2_biases=l2_biases)


def columns(dropout: float = 0.0) -> Network:
    """Four columns from the activations on, connected by the third fully connected layer; then a linear projection of
    each column, and a layer that sees all of them."""
    layers = [
        *(Convolution(5, 3, pad=1, pool=2, bias=0.1), Relu(), Convolution(8, 3), Relu()),
        *(FullyConnected(16, columns=4), Relu(), Dropout(dropout), FullyConnected(12, columns=4), Sigmoid()),
        *(FullyConnected(20), Relu(), FullyConnected(12, columns=4, bias=0.1), Relu(), Dropout(dropout)),
        *(FullyConnected(4, columns=4, gain=1.0), FullyConnected(9, gain=1.0)),
    ]
    return Network([layer.make() for layer in layers], Random.shape, LOSSES["softmax"], l2=0.01)


def group_of(transport: Any, ranks: int) -> Any:
    """A transport over the first `ranks` ranks; None on the others, or where there are not so many."""
    from mpi4py import MPI

    from mpitrain.mpi import Transport

    inside = transport.rank < ranks <= transport.size
    comm = transport.comm.Split(0 if inside else MPI.UNDEFINED, transport.rank)
    return Transport(comm, deadline=30.0) if inside else None


def settings(scheme: str, group: int, batch: int, **more: Any) -> list[str]:
    """Overrides for `STEPS` minibatches of `batch` examples over all ranks."""
    algorithm = {"name": "hybrid", "scheme": scheme, "group": group, "batch": "global", "base_batch": 16, **more}
    training = ["training.epochs=1", f"training.minibatch={batch}", "training.learning_rate=0.05"]
    return [*training, *(f"algorithm.{key}={value}" for key, value in algorithm.items())]


def reference(session: Session, parts: int, steps: int) -> np.ndarray:
    """What one rank makes of the same minibatches with the plain network, with partial updates where asked for."""
    network, learner, options = session.network, session.learner, session.config.algorithm
    theta = network.initial(session.config.training.seed, np.dtype(session.config.training.dtype))
    velocity, gradient = np.zeros_like(theta), np.empty_like(theta)
    size, eta = session.config.training.minibatch, session.config.training.learning_rate

    def update(first: int, last: int, count: int) -> None:
        rate, decay = options.scaled(eta, options.weight_decay + network.l2, count)
        for layer in network.layers[first:last]:
            for p in layer.parameters:
                part = network.layout.slices[p.name]
                biases = {"eta": options.bias_rate * rate, "decay": network.l2 if network.l2_biases else 0.0}
                own = {"eta": rate, "decay": decay} if p.decay else biases
                krizhevsky(theta[part], velocity[part], gradient[part], np.empty_like(theta[part]), mu=0.9, **own)

    l2, network.l2 = network.l2, 0.0  # the rule has it
    for step in range(steps):
        batch = learner.load(Work(0, step * size, size, size))
        if options.fc_batch == "full":
            network.loss_and_gradient(theta, gradient, batch, Draws(stream(learner.seed, "dropout", 0, step * size)))
            if most := session.config.training.clip_norm:
                assert np.linalg.norm(gradient) > most
                gradient *= most / (np.linalg.norm(gradient) + 1e-6)
            network.l2 = l2
            update(0, len(network.layers), size)
        else:
            network.l2 = l2
            partial_updates(network, theta, gradient, batch, order_of(options, parts, size), update)
        network.l2 = 0.0
    network.l2 = l2
    return theta


def partial_updates(network, theta, gradient, batch, order, update: Callable[[int, int, int], None]) -> None:
    """One minibatch in which the fully connected layers are updated after each round (Krizhevsky 2014, §4.2)."""
    views, gradients, split = network.layout.views(theta), network.layout.views(gradient), network.split
    before, after = network.layers[:split], network.layers[split:]
    x = batch.inputs
    for layer in before:
        x = layer.forward(views, x, True)
    activations, count = x.copy(), len(x)
    dy = np.empty_like(activations)
    for each in order:
        rows = np.concatenate([np.arange(p.start, p.stop) for p in each.pieces])
        h = activations[rows]
        for layer in after:
            h = layer.forward(views, h, True)
        network.loss.loss_and_gradient(h, batch.targets[rows], network.workspace)
        for layer in reversed(after):
            h = layer.backward(views, gradients, h)
        dy[rows] = h * (len(rows) / count)
        update(split, len(network.layers), len(rows))
    for i, layer in reversed(list(enumerate(before))):
        dy = layer.backward(views, gradients, dy, need_dx=i > 0)
    update(0, split, count)


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """‖a − b‖/‖b‖."""
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def compare(
    transport: Any,
    session_of: Any,
    ranks: int,
    network: Network,
    words: list[str],
    tolerance: float,
    steps: int = STEPS,
) -> None:
    """Train on `ranks` ranks and on one; the master's whole vector must be the same."""
    group = group_of(transport, ranks)
    if group is None:
        return
    batch = next(int(word.split("=")[1]) for word in words if word.startswith("training.minibatch"))
    session = session_of(group, *words, network=network, corpus=Random(steps * batch))
    hybrid.run(session)
    if group.rank == 0:
        assert session.state.index == steps
        assert distance(session.state.theta, reference(session, ranks, steps)) < tolerance


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize(("scheme", "group"), SCHEMES)
def test_full_is_one_rank_on_the_whole_batch(transport, session_of, ranks, scheme, group) -> None:
    compare(transport, session_of, ranks, small(l2=0.01, l2_biases=True), settings(scheme, group, 6 * ranks), 1e-10)


@pytest.mark.mpi(min_size=1)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize(("scheme", "group"), SCHEMES)
def test_the_norm_is_that_of_the_whole_gradient(transport, session_of, ranks, scheme, group) -> None:
    """All ranks' units and the common convolutions together; every minibatch's gradient is longer than 0.3."""
    words = [*settings(scheme, group, 6 * ranks), "training.clip_norm=0.3"]
    compare(transport, session_of, ranks, small(), words, 1e-10)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_logistic_outputs_too(transport, session_of, ranks) -> None:
    compare(transport, session_of, ranks, small("logistic"), settings("b", 0, 6 * ranks), 1e-10)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize(("scheme", "group"), SCHEMES)
def test_sub_is_one_rank_with_the_same_partial_updates(transport, session_of, ranks, scheme, group) -> None:
    words = settings(scheme, group, 6 * ranks, fc_batch="sub")
    compare(transport, session_of, ranks, small(l2=0.01), words, 1e-10)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("fc_batch", ["full", "sub"])
@pytest.mark.parametrize(("scheme", "group"), SCHEMES)
def test_columns_are_one_rank_s(transport, session_of, ranks, scheme, group, fc_batch) -> None:
    words = settings(scheme, group, 6 * ranks, fc_batch=fc_batch)
    compare(transport, session_of, ranks, columns(dropout=0.4 if fc_batch == "full" else 0.0), words, 1e-10, steps=3)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(("scheme", "group"), SCHEMES)
def test_columns_are_exchanged_only_where_they_are_connected(transport, session_of, ranks, scheme, group) -> None:
    """Of 64 hidden units those before the two layers that see all of them: 12, and 4 projections."""
    communicator = group_of(transport, ranks)
    if communicator is None:
        return
    b = 2 * ranks
    words, corpus = settings(scheme, group, b * ranks), Random(b * ranks)
    trainer = hybrid.HybridStepper(session_of(communicator, *words, network=columns(), corpus=corpus))
    trainer.step(trainer.next_work())
    received = trainer.transfers.received
    assert received["unit_activations"] == received["unit_gradients"] == 8 * (ranks - 1) * b * (12 + 4)


def test_a_wait_says_what_it_is_for() -> None:
    """Which a user reads when it is overdue; "the other ranks' other" once."""
    said: list[str] = []
    traffic = SimpleNamespace(bytes_received=0)
    transport = SimpleNamespace(
        size=2, clock=lambda: 0.0, traffic=traffic, wait=lambda request, what: said.append(what)
    )
    for kind in KINDS:
        Transfers(cast("Any", transport), overlap=False).start(kind, lambda: None)
    assert said[0] == "the other ranks' activations" and said[-1] == "the other ranks' targets or losses"


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("fc_batch", ["full", "sub"])
@pytest.mark.parametrize("scheme", ["a", "b", "c"])
def test_in_float32(transport, session_of, scheme, fc_batch) -> None:
    words = [*settings(scheme, 0, 24, fc_batch=fc_batch), "training.dtype=float32"]
    compare(transport, session_of, min(transport.size, 4), small(), words, 1e-4)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("batch", [1, 5, 29])
@pytest.mark.parametrize(("scheme", "group"), SCHEMES)
def test_ranks_need_not_divide_the_minibatch(transport, session_of, scheme, group, batch) -> None:
    """Nor need there be an example for every rank."""
    for fc_batch in ("full", "sub"):
        words = settings(scheme, group, batch, fc_batch=fc_batch)
        compare(transport, session_of, transport.size, small(), words, 1e-10, steps=2)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("scheme", ["a", "b", "c"])
def test_dropout_does_not_depend_on_the_ranks(transport, session_of, scheme) -> None:
    compare(transport, session_of, transport.size, small(dropout=0.4), settings(scheme, 0, 21), 1e-10, steps=3)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("scaling", ["theory", "none"])
def test_scaling_and_waiting_at_once(transport, session_of, scaling) -> None:
    words = settings("b", 0, 24, scaling=scaling, fc_batch="sub", overlap="false")
    compare(transport, session_of, transport.size, small(), words, 1e-10, steps=3)


@pytest.mark.parametrize("scheme", ["a", "b", "c"])
@pytest.mark.mpi(min_size=1)
def test_alone_it_is_msgd_with_classical_momentum(transport, session_of, scheme) -> None:
    group = group_of(transport, 1)
    if group is None:
        return
    plain = {"bias_rate": 1.0, "weight_decay": 0.0, "scaling": "none"}
    ours = session_of(group, *settings(scheme, 0, 12, **plain), network=small(dropout=0.5, l2=0.01), corpus=Random(120))
    words = [word for word in settings(scheme, 0, 12) if not word.startswith("algorithm.")]
    theirs = session_of(
        group,
        *words,
        "algorithm.name=msgd",
        "algorithm.nesterov=false",
        network=small(dropout=0.5, l2=0.01),
        corpus=Random(120),
    )
    hybrid.run(ours)
    synchronous.run(theirs)
    assert distance(ours.state.theta, theirs.state.theta) < 1e-12
    assert distance(ours.state.beside["velocity"], theirs.state.beside["velocity"]) < 1e-12


def even(ranks: int) -> Network:
    """A network whose every layer `ranks` divides, weights and biases together."""
    layers = [
        *(Convolution(2 * ranks, 3, pad=1, pool=2), Relu(), Convolution(ranks, 3), Relu()),
        *(FullyConnected(4 * ranks), Relu(), FullyConnected(3 * ranks), Relu(), FullyConnected(2 * ranks)),
    ]
    return Network([layer.make() for layer in layers], Random.shape, LOSSES["softmax"])


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("ranks", range(2, 9))
@pytest.mark.parametrize(("scheme", "group"), [("a", 0), ("b", 0), ("c", 0), ("c", 1)])
def test_bytes_are_the_closed_forms(transport, session_of, ranks, scheme, group) -> None:
    """Floats received a rank and minibatch: (K−1)bA, (K−1)bN for each boundary, 2(K−1)/K·W, and back the same."""
    communicator = group_of(transport, ranks)
    if communicator is None:
        return
    network, b = even(ranks), 2 * ranks
    words = settings(scheme, group, b * ranks, fc_batch="sub")
    session = session_of(communicator, *words, network=network, corpus=Random(STEPS * b * ranks))
    trainer = hybrid.HybridStepper(session)
    before = session.transport.traffic.bytes_received
    trainer.step(trainer.next_work())
    received = trainer.transfers.received
    k, a, units, w = ranks, 2 * 2 * ranks, 7 * ranks, network.slices[network.split].start
    assert received["activations"] == received["activation_gradients"] == 8 * (k - 1) * b * a
    assert received["unit_activations"] == received["unit_gradients"] == 8 * (k - 1) * b * units
    assert received["conv_gradients"] * k == 8 * 2 * (k - 1) * w
    assert session.transport.traffic.bytes_received - before == sum(received.values())


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("scheme", ["a", "b", "c"])
def test_nothing_is_allocated_after_the_first_steps(transport, session_of, scheme) -> None:
    """Buffers of this run are of 40 kB and more; small indices and transfers come and go."""
    batch = 64 * transport.size
    session = session_of(
        transport, *settings(scheme, 0, batch), network=small(dropout=0.5), corpus=Random(STEPS * batch)
    )
    trainer = hybrid.HybridStepper(session)
    works = [trainer.next_work() for _ in range(6)]
    for work in works[:4]:
        trainer.step(work)
    tracemalloc.start()
    try:
        held = tracemalloc.get_traced_memory()[0]
        for work in works[4:]:
            trainer.step(work)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept - held < 20_000
    assert peak - held < 400_000  # the corpus of this test copies its images


@pytest.mark.mpi(min_size=2)
def test_replicated_weights_stay_the_same_on_all_ranks(transport, session_of) -> None:
    session = session_of(transport, *settings("c", 0, 24), network=small(), corpus=Random(STEPS * 24))
    trainer = hybrid.HybridStepper(session)
    for _ in range(STEPS):
        trainer.step(trainer.next_work())
    shared = trainer.whole.theta[: session.network.slices[session.network.split].start]
    everyone = transport.gather_texts(shared.tobytes().hex(), "the test")
    assert len(set(everyone)) == 1
