"""A network divided over parts: who holds what, and that parts together compute what the whole does."""

import numpy as np
import pytest

from mpitrain.errors import BadInput
from mpitrain.flat import share
from mpitrain.models.layer import LayerOptions
from mpitrain.models.layers.convolution import ConvolutionOptions as Convolution
from mpitrain.models.layers.dropout import Dropout as DropoutLayer
from mpitrain.models.layers.dropout import DropoutOptions as Dropout
from mpitrain.models.layers.dropout import DropoutShare, Scaled
from mpitrain.models.layers.fully_connected import FullyConnectedOptions as FullyConnected
from mpitrain.models.layers.relu import ReluOptions as Relu
from mpitrain.models.losses import LOSSES
from mpitrain.models.model import Draws
from mpitrain.models.network import Network, build
from mpitrain.models.partition import Partition, add_product, product, stages
from mpitrain.models.workspace import Workspace
from mpitrain.sampling.rng import stream


def network(*after: LayerOptions) -> Network:
    """A convolution with 8 parameters, then `after`."""
    layers = [Convolution(2, 1), Relu(), *(after or (FullyConnected(5), Relu(), FullyConnected(3)))]
    return Network([layer.make() for layer in layers], (1, 1, 3), LOSSES["softmax"])


def test_sizes_of_units_differ_by_at_most_one() -> None:
    for units in range(1, 30):
        for parts in range(1, 9):
            slices = [share(units, part, parts) for part in range(parts)]
            assert [s.start for s in slices[1:]] == [s.stop for s in slices[:-1]]
            assert (slices[0].start, slices[-1].stop) == (0, units)
            sizes = [s.stop - s.start for s in slices]
            assert max(sizes) - min(sizes) <= 1


def test_part_holds_its_columns() -> None:
    """2 inputs, 5 units, 3 outputs: after 8 convolution parameters, W [2, 5], b [5], V [5, 3], c [3]."""
    whole = np.arange(8.0 + 10 + 5 + 15 + 3)
    parts = [Partition(network(), part, 2) for part in range(2)]
    assert [part.shared for part in parts] == [8, 8]
    first, second = (part.take(whole) for part in parts)
    w, b, v, c = [8, 9, 13, 14], [18, 19], [23, 26, 29, 32, 35], [38]
    assert first.tolist() == [*range(8), *w, *b, *v, *c]
    w, b, v, c = [10, 11, 12, 15, 16, 17], [20, 21, 22], [24, 25, 27, 28, 30, 31, 33, 34, 36, 37], [39, 40]
    assert second.tolist() == [*range(8), *w, *b, *v, *c]
    again = np.full_like(whole, np.nan)
    again[:8] = first[:8]
    for part, own in zip(parts, (first, second), strict=True):
        part.put(own[8:], again)
    assert np.array_equal(again, whole)


@pytest.mark.parametrize("parts", [1, 2, 3, 5, 8])
def test_every_preset_with_convolutions_comes_together_again(parts: int) -> None:
    for preset, shape in (("digits-cnn", (8, 8, 1)), ("easgd-cifar", (28, 28, 3)), ("krizhevsky2014", (67, 67, 3))):
        net = build(preset, shape, 10, width=0.2)
        whole, again = net.initial(1), np.zeros(net.layout.size, np.float32)
        for part in range(parts):
            partition = Partition(net, part, parts)
            own = partition.take(whole)
            assert own.size == partition.layout.size
            again[: partition.shared] = own[: partition.shared]
            partition.put(own[partition.shared :], again)
        assert np.array_equal(again, whole)


@pytest.mark.parametrize(
    ("net", "parts", "why"),
    [
        (build("zhang2013-dnn", (11, 42), 10, width=0.01), 2, "convolutional layers"),
        (network(), 4, "fc2 has 3 units, too few for 4 ranks"),
        (network(FullyConnected(8), Dropout(), Relu(), FullyConnected(8)), 2, "cannot divide relu2"),
        (network(FullyConnected(8), Relu()), 2, "fc1 to be the last layer"),
        (network(FullyConnected(8), FullyConnected(8, columns=4)), 3, "fc2 has 4 columns, which 3 ranks of hybrid"),
    ],
)
def test_says_why_a_network_cannot_be_divided(net: Network, parts: int, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        stages(net, parts)


@pytest.mark.parametrize("progress", [False, True])
@pytest.mark.parametrize("n", [1, 7])
def test_products_by_blocks(progress: bool, n: int) -> None:
    rng, calls = stream(1, "test"), []
    a, b = rng.standard_normal((1000, 3000)), rng.standard_normal((n * 40, 3000)).T
    out = np.empty((1000, n * 40))
    product(a, b, out, (lambda: calls.append(1)) if progress else None)
    np.testing.assert_allclose(out, a @ b, rtol=1e-9, atol=1e-9)
    add_product(a, b, out, Workspace(), None)
    np.testing.assert_allclose(out, 2 * (a @ b), rtol=1e-9, atol=1e-9)
    assert bool(calls) == progress


@pytest.mark.parametrize("output", ["softmax", "logistic"])
def test_parts_of_a_loss_add_up(output: str) -> None:
    """The parts' reductions run in step: each part is a thread of its own."""
    from concurrent.futures import ThreadPoolExecutor
    from threading import Barrier

    parts, n, classes = 3, 6, 8
    z, targets = stream(2, "test").standard_normal((n, classes)) * 30, np.array([0, 7, 3, 3, 5, 2], np.int32)
    barrier, seen = Barrier(parts), [np.empty(0)] * parts

    def one(part: int) -> tuple[float, np.ndarray]:
        def reduce(array: np.ndarray, how: str) -> None:
            seen[part] = array.copy()
            barrier.wait(10)
            array[:] = np.max(seen, axis=0) if how == "max" else np.sum(seen, axis=0)
            barrier.wait(10)

        own = share(classes, part, parts)
        mine = np.ascontiguousarray(z.T[own])
        return LOSSES[output].split_loss_and_gradient(mine, targets, 1 / n, own, reduce, Workspace()), mine

    with ThreadPoolExecutor(parts) as pool:
        results = list(pool.map(one, range(parts)))
    whole = LOSSES[output]
    expected = z.copy()
    loss = whole.loss_and_gradient(expected, targets, Workspace())
    assert sum(term for term, _ in results) == pytest.approx(loss, rel=1e-12)
    np.testing.assert_allclose(np.vstack([dz for _, dz in results]).T, expected, rtol=1e-12, atol=1e-15)


def test_two_outputs_by_hand() -> None:
    """Softmax of (0, log 3) is (1/4, 3/4): loss log 4, gradient (−3/4, 3/4); one part holding all."""
    z = np.array([[0.0], [np.log(3.0)]])
    given = z, np.array([0]), 1.0, slice(0, 2), lambda a, how: None, Workspace()
    loss = LOSSES["softmax"].split_loss_and_gradient(*given)
    assert loss == pytest.approx(np.log(4))
    np.testing.assert_allclose(z, [[-0.75], [0.75]], rtol=1e-15)


@pytest.mark.parametrize("scaled", ["training", "evaluation"])
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_shares_of_dropout_are_the_whole_layers(parts: int, scaled: Scaled) -> None:
    """200 examples, so that draws come in several pieces."""
    net = network(FullyConnected(7), Relu(), Dropout(0.3, scaled), FullyConnected(3))
    (dropout,) = (layer for layer in net.layers if isinstance(layer, DropoutLayer))
    whole = dropout.forward({}, np.ones((200, 7)), True, Draws(stream(5, "dropout")))
    for part in range(parts):
        own = share(7, part, parts)
        dropped = DropoutShare(dropout, own, 7, Workspace())
        dropped.draw(stream(5, "dropout"), 200, np.dtype(np.float64))
        pieces = [slice(3, 9), slice(50, 52), slice(120, 200)]
        rows = np.concatenate([np.arange(200)[piece] for piece in pieces])
        assert np.array_equal(dropped.of(pieces).T, whole[rows, own])
        assert np.array_equal(dropped.of(pieces[:1]).T, whole[3:9, own])
