"""Every layer against central differences, and against numbers worked out by hand."""

import numpy as np
import pytest

from mpitrain.errors import BadInput
from mpitrain.flat import Array, Layout
from mpitrain.models.layer import Layer, LayerOptions, Shape
from mpitrain.models.layers.convolution import ConvolutionOptions as Convolution
from mpitrain.models.layers.dropout import DropoutOptions as Dropout
from mpitrain.models.layers.fully_connected import FullyConnectedOptions as FullyConnected
from mpitrain.models.layers.group_norm import GroupNormOptions as GroupNorm
from mpitrain.models.layers.local_response_norm import LocalResponseNormOptions as LocalResponseNorm
from mpitrain.models.layers.max_pool import MaxPoolOptions as MaxPool
from mpitrain.models.layers.relu import ReluOptions as Relu
from mpitrain.models.layers.sigmoid import SigmoidOptions as Sigmoid
from mpitrain.models.model import Draws
from mpitrain.models.workspace import Workspace

from .gradients import check_layer

LAYERS = [
    (FullyConnected(4), (5,)),
    (FullyConnected(3), (2, 3, 2)),
    (FullyConnected(6, columns=3), (2, 3, 2)),
    (Relu(), (7,)),
    (Sigmoid(), (7,)),
    (Dropout(0.4), (9,)),
    (Dropout(0.4, "evaluation"), (9,)),
    (Dropout(0.0), (4,)),
    (MaxPool(2), (5, 4, 3)),
    (MaxPool(3, 2), (7, 8, 2)),
    (MaxPool(2, 3), (5, 6, 2)),
    (MaxPool(16), (16, 17, 2)),
    (MaxPool(17), (17, 18, 2)),
    (MaxPool(24, 3), (27, 24, 1)),
    (LocalResponseNorm(), (2, 2, 7)),
    (LocalResponseNorm(3, 0.7, 0.5, 1.0), (2, 3, 5)),
    (GroupNorm(3), (2, 3, 6)),
    (GroupNorm(1, 0.5), (3, 2, 4)),
    (GroupNorm(4), (3, 2, 4)),
    (Convolution(3, 3), (5, 4, 2)),
    (Convolution(2, 3, pad=1), (4, 4, 9)),
    (Convolution(2, 3, stride=2, pad=1), (6, 5, 3)),
    (Convolution(2, 5, stride=4, pad=2), (11, 9, 1)),
    (Convolution(3, 2, pool=2), (6, 5, 2)),
    (Convolution(2, 3, pad=1, pool=3, pool_stride=2), (7, 7, 2)),
    (Convolution(1, 2, pool=20), (21, 22, 1)),
    (Convolution(4, 3, pad=1, groups=2), (4, 5, 6)),
    (Convolution(3, 2, stride=2, pool=2, pool_stride=1, groups=3), (7, 6, 3)),
]


@pytest.mark.parametrize(("layer", "shape"), LAYERS)
def test_gradients_are_those_of_central_differences(layer: LayerOptions, shape: Shape) -> None:
    check_layer(layer.make(), shape)


def test_convolution_in_blocks_of_one_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Workspace, "patch_rows", 1)
    check_layer(Convolution(2, 3, pad=1, pool=2).make(), (4, 5, 3), n=4)
    check_layer(Convolution(2, 3, pad=1, pool=2, groups=2).make(), (4, 5, 4), n=4)


def run(options: LayerOptions, x: Array, parameters: Array) -> Array:
    return run_made(options.make(), x, parameters)


def run_made(layer: Layer, x: Array, parameters: Array) -> Array:
    layer.connect(x.shape[1:])
    return layer.forward(Layout(layer.parameters).views(parameters), x)


def test_fully_connected_by_hand() -> None:
    y = run(FullyConnected(2), np.array([[1.0, 2.0]]), np.array([1.0, 10.0, 3.0, 30.0, 0.5, -0.5]))
    np.testing.assert_array_equal(y, [[1 + 6 + 0.5, 10 + 60 - 0.5]])


def test_columns_by_hand() -> None:
    """Inputs 1, 2 and 3, 4; W [2, 4] has a column of weights for each unit, of which two belong to each column."""
    weights = np.array([[1.0, 10.0, 100.0, 1000.0], [2.0, 20.0, 200.0, 2000.0]])
    parameters = np.append(weights.ravel(), [0.5, 0, 0, -0.5])
    y = run(FullyConnected(4, columns=2), np.array([[1.0, 2.0, 3.0, 4.0]]), parameters)
    np.testing.assert_array_equal(y, [[1 + 4 + 0.5, 10 + 40, 300 + 800, 3000 + 8000 - 0.5]])


def test_columns_are_whole_and_see_fewer_inputs() -> None:
    """Weights are drawn for the inputs of a column; what cannot be divided is said."""
    layer = FullyConnected(6, columns=3).make()
    layer.connect((12,))
    assert layer.parameters[0].shape == (4, 6) and layer.parameters[0].initial == ("gaussian", 0.5**0.5)
    assert layer.operations == 24
    for inputs, units in ((11, 6), (12, 5)):
        with pytest.raises(BadInput, match=f"{inputs} inputs and {units} units cannot both be divided into 3"):
            FullyConnected(units, columns=3).make().connect((inputs,))


def test_convolution_by_hand() -> None:
    """A 3 x 3 image of 1 … 9 under [[1, 2], [3, 4]] (correlation, not flipped), bias 0.5."""
    x = np.arange(1.0, 10.0).reshape(1, 3, 3, 1)
    weights = np.array([1.0, 2.0, 3.0, 4.0, 0.5])
    np.testing.assert_array_equal(run(Convolution(1, 2), x, weights)[0, :, :, 0], [[37.5, 47.5], [67.5, 77.5]])
    # With one pixel of padding and stride 2 the windows hold the corners 1, 3, 7 pixels and the middle of each edge.
    padded = run(Convolution(1, 2, stride=2, pad=1), x, weights)[0, :, :, 0]
    np.testing.assert_array_equal(padded, [[4.5, 18.5], [2 * 4 + 4 * 7 + 0.5, 77.5]])
    np.testing.assert_array_equal(run(Convolution(1, 2, pool=2), x, weights), [[[[77.5]]]])


def test_convolution_weights_are_height_width_input_filter() -> None:
    """Each filter picks one tap: (row 1, column 0, channel 1) and (row 0, column 1, channel 0)."""
    x = np.arange(8.0).reshape(1, 2, 2, 2)
    weights = np.zeros((2, 2, 2, 2))
    weights[1, 0, 1, 0] = weights[0, 1, 0, 1] = 1
    y = run(Convolution(2, 2), x, np.append(weights.ravel(), [0, 0]))
    np.testing.assert_array_equal(y.ravel(), [x[0, 1, 0, 1], x[0, 0, 1, 0]])


def test_groups_by_hand() -> None:
    """Channels 1, 2 and 3, 4 of one pixel; W [1, 1, 2, 4] has two filters for each group."""
    weights = np.array([[1.0, 10.0, 100.0, 1000.0], [2.0, 20.0, 200.0, 2000.0]])
    parameters = np.append(weights.ravel(), [0.5, 0, 0, -0.5])
    y = run(Convolution(4, 1, groups=2), np.array([1.0, 2.0, 3.0, 4.0]).reshape(1, 1, 1, 4), parameters)
    np.testing.assert_array_equal(y.ravel(), [1 + 4 + 0.5, 10 + 40, 300 + 800, 3000 + 8000 - 0.5])


def test_groups_are_whole_and_see_fewer_channels() -> None:
    """Weights are drawn for the channels of a group; what cannot be divided is said."""
    layer = Convolution(6, 2, groups=3).make()
    layer.connect((4, 3, 12))
    assert layer.parameters[0].shape == (2, 2, 4, 6) and layer.parameters[0].initial == ("gaussian", (2 / 16) ** 0.5)
    assert layer.operations == 3 * 2 * 6 * 4 * 4
    for channels, filters in ((11, 6), (12, 5)):
        with pytest.raises(BadInput, match=f"{channels} channels and {filters} filters cannot both be divided into 3"):
            Convolution(filters, 1, groups=3).make().connect((2, 2, channels))


def test_max_pool_by_hand() -> None:
    x = np.array([[1, 5, 2], [4, 3, 8], [7, 6, 0]], float).reshape(1, 3, 3, 1)
    pool = MaxPool(2, 1).make()
    np.testing.assert_array_equal(run_made(pool, x, np.empty(0))[0, :, :, 0], [[5, 8], [7, 8]])
    dx = pool.backward({}, {}, np.array([1.0, 10, 100, 1000]).reshape(1, 2, 2, 1))
    np.testing.assert_array_equal(dx[0, :, :, 0], [[0, 1, 0], [0, 0, 1010], [100, 0, 0]])


@pytest.mark.parametrize(("size", "bytes_each"), [(1, 1), (16, 1), (17, 4), (300, 4)])
def test_the_place_of_any_maximum_fits(size: int, bytes_each: int) -> None:
    """The last pixel of a window is its maximum, and small windows store no more than a byte."""
    pool = MaxPool(size).make()
    x = np.zeros((1, size, size, 1))
    x[0, -1, -1, 0] = 1
    run_made(pool, x, np.empty(0))
    assert pool.places(1).itemsize == bytes_each
    np.testing.assert_array_equal(pool.backward({}, {}, np.full((1, 1, 1, 1), 5.0)), 5 * x)


def test_pooling_drops_what_no_whole_window_covers() -> None:
    pool = MaxPool(2).make()
    assert pool.connect((5, 3, 1)) == (2, 1, 1)
    pool.forward({}, np.ones((1, 5, 3, 1)))
    dx = pool.backward({}, {}, np.ones((1, 2, 1, 1)))
    # The first of equals takes the gradient.
    np.testing.assert_array_equal(dx[0, :, :, 0], [[1, 0, 0], [0, 0, 0], [1, 0, 0], [0, 0, 0], [0, 0, 0]])


@pytest.mark.parametrize("power", [0.5, 0.75])
def test_local_response_norm_by_hand(power: float) -> None:
    """Channels 1, 2, 3 under size 3, scale 1, offset 3: sums of squares 5, 14, 13."""
    y = run(LocalResponseNorm(3, 1.0, power, 3.0), np.array([[[[1.0, 2.0, 3.0]]]]), np.empty(0))
    np.testing.assert_allclose(y.ravel(), [1 / 8**power, 2 / 17**power, 3 / 16**power], rtol=1e-14)


def test_group_norm_by_hand() -> None:
    """Channels 1, 3 and 10, 30 of one pixel have means 2 and 20, deviations 1 and 10; then scales and biases."""
    x, parameters = np.array([[[[1.0, 3.0, 10.0, 30.0]]]]), np.array([1.0, 2, 3, 4, 0, 0, 0.5, -0.5])
    np.testing.assert_allclose(run(GroupNorm(2, 1e-30), x, parameters).ravel(), [-1, 2, -2.5, 3.5], rtol=1e-14)


def test_group_norm_divides_the_channels_evenly() -> None:
    with pytest.raises(BadInput, match="6 channels cannot be divided into 4 equal groups"):
        GroupNorm(4).make().connect((2, 2, 6))


def test_activations_at_the_ends_of_the_range() -> None:
    x = np.array([[-1000.0, 0.0, 1000.0]], np.float32)
    np.testing.assert_array_equal(run(Sigmoid(), x.copy(), np.empty(0)), [[0, 0.5, 1]])
    np.testing.assert_array_equal(run(Relu(), x.copy(), np.empty(0)), [[0, 0, 1000]])


def test_dropout_keeps_the_mean_and_is_absent_in_evaluation() -> None:
    x = np.ones((200, 500), np.float32)
    layer = Dropout(0.25).make()
    layer.connect((500,))
    y = layer.forward({}, x, True, Draws(np.random.default_rng(0)))
    assert set(np.unique(y)) == {np.float32(0), np.float32(1 / 0.75)}
    assert abs(float((y == 0).mean()) - 0.25) < 0.01
    assert layer.forward({}, x, False) is x
    with pytest.raises(ValueError, match="random stream"):
        layer.forward({}, x, True)


def test_dropout_of_2012_scales_in_evaluation_alone() -> None:
    """The same units are dropped; in either form, what follows sees the mean of training in evaluation."""
    x, rates = np.full((200, 500), 3.0), (0.0, 0.25)
    for rate in rates:
        layer, today = Dropout(rate, "evaluation").make(), Dropout(rate).make()
        layer.connect((500,)), today.connect((500,))
        y = layer.forward({}, x, True, Draws(np.random.default_rng(0))).copy()
        np.testing.assert_allclose(y, (1 - rate) * today.forward({}, x, True, Draws(np.random.default_rng(0))))
        np.testing.assert_array_equal(layer.forward({}, x, False), (1 - rate) * x)
        assert abs(float(y.mean()) - 3 * (1 - rate)) < 0.03 and np.all(x == 3.0)


def test_dropout_drops_the_same_units_in_either_dtype() -> None:
    layer = Dropout(0.5).make()
    layer.connect((40,))
    single, double = (
        layer.forward({}, np.ones((6, 40), t), True, Draws(np.random.default_rng(3))).copy() for t in "fd"
    )
    np.testing.assert_array_equal(single, double)


@pytest.mark.parametrize("options", [MaxPool(2), Relu(), Sigmoid(), LocalResponseNorm(), Convolution(1, 2)])
@pytest.mark.parametrize("position", range(4))
def test_nan_is_not_hidden(options: LayerOptions, position: int) -> None:
    layer = options.make()
    x = np.ones((1, 2, 2, 1))
    x.flat[position] = np.nan
    size = sum(p.size for p in layer.parameters) or 5
    layer.connect((2, 2, 1))
    y = layer.forward(Layout(layer.parameters).views(np.ones(size)[: Layout(layer.parameters).size]), x)
    assert np.isnan(y).any()


@pytest.mark.parametrize("layer", [MaxPool(4), Convolution(1, 4), Convolution(1, 6, pad=1)])
def test_input_too_small(layer: LayerOptions) -> None:
    with pytest.raises(BadInput, match="3 x 3"):
        layer.make().connect((3, 3, 1))
