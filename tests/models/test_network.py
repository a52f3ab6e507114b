"""What the rest of the program relies on of a network."""

import tracemalloc

import numpy as np
import pytest

from mpitrain.flat import Array
from mpitrain.models.model import Draws
from mpitrain.models.network import Network, build, warm
from mpitrain.sampling.batch import Batch

SMALL = {"digits-cnn": (8, 8, 1), "easgd-cifar": (28, 28, 3), "strom2015-dnn": (4, 5)}


def random_batch(network: Network, n: int, dtype: type = np.float32, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    inputs = rng.standard_normal((n, *network.input_shape)).astype(dtype)
    return Batch(inputs, rng.integers(0, network.classes, n).astype(np.int32))


def gradient(network: Network, parameters: Array, batch: Batch) -> Array:
    out = np.full_like(parameters, np.nan)
    network.loss_and_gradient(parameters, out, batch, Draws(np.random.default_rng(7)))
    return out


@pytest.fixture(params=SMALL)
def network(request: pytest.FixtureRequest) -> Network:
    return build(request.param, SMALL[request.param], 10, width=0.25, l2=1e-3)


def test_parts_become_ready_once_last_first_and_are_final(network: Network) -> None:
    parameters = network.initial(0, np.float32)
    gradients, at_ready = np.full_like(parameters, np.nan), np.full_like(parameters, np.nan)
    ready: list[slice] = []

    def on_ready(part: slice) -> None:
        ready.append(part)
        at_ready[part] = gradients[part]

    network.loss_and_gradient(
        parameters, gradients, random_batch(network, 5), Draws(np.random.default_rng(0)), on_ready
    )
    np.testing.assert_array_equal(at_ready, gradients)
    assert np.isfinite(gradients).all()
    ends = [part.stop for part in ready]
    starts = [part.start for part in ready]
    assert (ends[0], starts[-1]) == (network.layout.size, 0)
    assert starts[:-1] == ends[1:]


def test_the_initial_vector_depends_on_the_seed_only() -> None:
    shape = (8, 8, 1)
    first, again, other = (build("digits-cnn", shape, 10).initial(seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    double = build("digits-cnn", shape, 10).initial(1, np.float64)
    np.testing.assert_array_equal(first, double.astype(np.float32))


def test_the_initial_deviation_and_constant() -> None:
    network = build("chan2014-dnn", (400,), 10)
    views = network.layout.views(network.initial(3))
    weights = views["fc1.weights"]
    assert weights.std() == pytest.approx((2 / 400) ** 0.5, rel=0.01)
    assert abs(weights.mean()) < 4 * weights.std() / weights.size**0.5
    assert (views["fc1.bias"] == np.float32(0.1)).all()


def test_the_mean_gradient_of_a_minibatch_is_the_mean_of_its_parts(network: Network) -> None:
    """Also: minibatches of any size follow one another. No dropout and no l2, which are not means over examples."""
    network = build(
        "strom2015-dnn" if len(network.input_shape) == 2 else "digits-cnn", network.input_shape, 10, width=0.2
    )
    parameters = network.initial(0, np.float64)
    batch = random_batch(network, 9, np.float64)
    whole = gradient(network, parameters, batch)
    parts = [
        gradient(network, parameters, Batch(batch.inputs[s], batch.targets[s])) for s in (slice(0, 3), slice(3, 9))
    ]
    np.testing.assert_allclose(whole, (3 * parts[0] + 6 * parts[1]) / 9, rtol=1e-10, atol=1e-14)
    np.testing.assert_array_equal(whole, gradient(network, parameters, batch))


def test_ranks_that_share_a_minibatch_drop_what_one_rank_would() -> None:
    network = build("chan2014-dnn", (6, 4), 5, width=0.03)
    parameters = network.initial(0, np.float64)
    batch = random_batch(network, 9, np.float64)
    whole = gradient(network, parameters, batch)
    parts = []
    for s in (slice(0, 4), slice(4, 9)):
        part = np.empty_like(parameters)
        shared = Batch(batch.inputs[s], batch.targets[s])
        network.loss_and_gradient(parameters, part, shared, Draws(np.random.default_rng(7), (s.start, 9)))
        parts.append(part)
    np.testing.assert_allclose(whole, (4 * parts[0] + 5 * parts[1]) / 9, rtol=1e-10, atol=1e-14)


def test_single_precision_agrees_with_double(network: Network) -> None:
    parameters = network.initial(0, np.float64)
    batch = random_batch(network, 6, np.float64)
    double = gradient(network, parameters, batch)
    single = gradient(network, parameters.astype(np.float32), Batch(batch.inputs.astype(np.float32), batch.targets))
    assert single.dtype == np.float32
    assert np.linalg.norm(single - double) < 1e-5 * np.linalg.norm(double)


@pytest.mark.parametrize("biases", [False, True])
def test_l2_adds_its_multiple_of_the_weights_and_of_the_biases_where_told(biases: bool) -> None:
    plain = build("digits-cnn", (8, 8, 1), 10, width=0.25)
    decayed = build("digits-cnn", (8, 8, 1), 10, width=0.25, l2=0.5, l2_biases=biases)
    parameters = plain.initial(0, np.float64) + 0.1
    batch = random_batch(plain, 4, np.float64)
    difference = gradient(decayed, parameters, batch) - gradient(plain, parameters, batch)
    views, weights = decayed.layout.views(difference), decayed.layout.views(parameters)
    for parameter in decayed.layout.parameters:
        expected = 0.5 * weights[parameter.name] if biases or parameter.name.endswith("weights") else 0.0
        np.testing.assert_allclose(views[parameter.name], expected, atol=1e-12, err_msg=parameter.name)


def test_evaluation_counts_the_first_of_equal_outputs() -> None:
    """With all parameters 0 every output is equal: class 0 is the answer and log(classes) the loss."""
    network = build("strom2015-dnn", (3,), 4, width=0.01)
    batch = Batch(np.ones((5, 3), np.float32), np.array([0, 1, 0, 3, 2], np.int32))
    loss, errors = network.evaluate(np.zeros(network.layout.size, np.float32), batch)
    assert errors == 3
    assert loss == pytest.approx(5 * np.log(4), rel=1e-6)


def test_evaluation_has_no_dropout() -> None:
    network = build("chan2014-dnn", (6,), 4, width=0.02)
    parameters, batch = network.initial(0), random_batch(network, 8)
    assert network.evaluate(parameters, batch) == network.evaluate(parameters, batch)
    undropped = build("chan2014-dnn", (6,), 4, width=0.02, dropout=0.0)
    assert network.evaluate(parameters, batch)[0] / 8 == pytest.approx(
        undropped.loss_and_gradient(parameters, np.empty_like(parameters), batch), rel=1e-6
    )


def test_inputs_and_parameters_are_left_alone(network: Network) -> None:
    parameters, batch = network.initial(0), random_batch(network, 4)
    before = parameters.copy(), batch.inputs.copy()
    gradient(network, parameters, batch)
    network.evaluate(parameters, batch)
    np.testing.assert_array_equal(parameters, before[0])
    np.testing.assert_array_equal(batch.inputs, before[1])


def test_other_vectors_are_seen_when_they_come(network: Network) -> None:
    """Protocols alternate between a replica, a look-ahead point and the centre."""
    batch = random_batch(network, 4)
    first, second = network.initial(0), network.initial(1)
    expected = gradient(network, second, batch)
    gradient(network, first, batch)
    np.testing.assert_array_equal(gradient(network, second, batch), expected)
    first[:] = second
    np.testing.assert_array_equal(gradient(network, first, batch), expected)


def test_nothing_large_is_allocated_after_the_first_step(network: Network) -> None:
    parameters, batch, rng = network.initial(0), random_batch(network, 64), np.random.default_rng(0)
    gradients = np.empty_like(parameters)
    network.loss_and_gradient(parameters, gradients, batch, Draws(rng))
    tracemalloc.start()
    for n in (64, 17, 64):
        network.loss_and_gradient(parameters, gradients, Batch(batch.inputs[:n], batch.targets[:n]), Draws(rng))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000  # the first convolution's output alone is several times as large


def test_nan_parameters_give_a_nan_loss(network: Network) -> None:
    parameters = network.initial(0)
    parameters[0] = np.nan
    batch = random_batch(network, 4)
    assert np.isnan(
        network.loss_and_gradient(parameters, np.empty_like(parameters), batch, Draws(np.random.default_rng(0)))
    )


def test_training_on_one_minibatch_learns_it() -> None:
    network = build("digits-cnn", (8, 8, 1), 10)
    parameters, batch = network.initial(0), random_batch(network, 32)
    gradients = np.empty_like(parameters)
    losses = []
    for _ in range(60):
        losses.append(network.loss_and_gradient(parameters, gradients, batch))
        parameters -= 0.1 * gradients
    assert losses[0] > 2 and losses[-1] < 0.1
    assert network.evaluate(parameters, batch)[1] == 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_warm_runs_a_step(network: Network, dtype: type) -> None:
    warm(network, dtype)
