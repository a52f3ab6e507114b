"""Layers and losses: kernels against references, references against the layers of mpitrain/models."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mpitrain.errors import BadInput
from mpitrain.kernels import launch
from mpitrain.kernels.launch import CHUNK, HALF_MAX, Kernels
from mpitrain.models.layers.dropout import DropoutOptions
from mpitrain.models.layers.local_response_norm import LocalResponseNormOptions
from mpitrain.models.layers.max_pool import max_pool, max_unpool, place_type
from mpitrain.models.losses import LOSSES
from mpitrain.models.model import Draws
from mpitrain.models.patches import add_patches
from mpitrain.models.workspace import Workspace
from mpitrain.sampling.rng import stream
from tests.kernels import reference

from .conftest import Guarded

#: Float32 sums and exponentials may round differently.
CLOSE = 2e-6


def normal(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


LOSS_SHAPES = [(0, 10), (1, 1), (5, 10), (3, 33), (4, 257), (2, 1000)]


@pytest.mark.parametrize("shape", LOSS_SHAPES)
@pytest.mark.parametrize("loss", ["softmax", "logistic"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_losses(compare: Callable[..., list[Any]], order: int, loss: str, shape: tuple[int, int], dtype: type) -> None:
    z = 3 * normal(*shape, dtype=dtype)
    targets = np.random.default_rng(1).integers(0, shape[1], shape[0]).astype(np.int32)
    losses = np.zeros(shape[0])
    close = CLOSE if dtype is np.float32 else 1e-14
    kept = compare(f"{loss}_loss", z, targets, losses, tolerance=close)[0]
    np.testing.assert_array_equal(kept, z)
    gradient, _, parts = compare(f"{loss}_gradient", z, targets, losses, tolerance=close)
    if shape[0]:
        total = LOSSES[loss].loss_and_gradient(z, targets, Workspace())
        assert parts.sum() == pytest.approx(total, rel=1e-6)
        np.testing.assert_allclose(gradient, z, atol=1e-6)


@pytest.mark.parametrize("loss", ["softmax", "logistic"])
def test_losses_of_extreme_outputs(compare: Callable[..., list[Any]], loss: str) -> None:
    """No overflow; NaN is NaN."""
    z = np.array([[1e4, -1e4, 0], [-88.0, 88.0, 90.0], [0, np.nan, 1]], np.float32)
    targets, losses = np.array([1, 2, 0], np.int32), np.zeros(3)
    for name in (f"{loss}_loss", f"{loss}_gradient"):
        parts = compare(name, z, targets, losses, tolerance=CLOSE)[2]
        assert np.isfinite(parts[:2]).all() and np.isnan(parts[2])


@pytest.mark.parametrize("shape", [(0, 4), (1, 1), (255, 1), (256, 1), (3, 85), (130, 70)])
def test_activations(compare: Callable[..., list[Any]], shape: tuple[int, int]) -> None:
    y, bias = 20 * normal(*shape), normal(shape[1])
    compare("add_bias", y, bias)
    compare("bias_relu", y, bias)
    compare("bias_relu", y, None)
    compare("bias_sigmoid", y, bias, tolerance=CLOSE)
    compare("bias_sigmoid", y, None, tolerance=CLOSE)
    compare("relu_backward", np.maximum(y, 0), normal(*shape))
    compare("sigmoid_backward", np.abs(y) / 100, normal(*shape))


def test_activations_of_odd_numbers(compare: Callable[..., list[Any]]) -> None:
    y = np.array([np.nan, np.inf, -np.inf, -1000, 1000], np.float32)
    compare("bias_relu", y, None)
    compare("bias_sigmoid", y, None, tolerance=CLOSE)
    compare("relu_backward", np.zeros(5, np.float32), y)


@pytest.mark.parametrize("rows", [0, 1, 8, 9, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK])
@pytest.mark.parametrize("columns", [1, 31, 32, 33, 70])
def test_column_sums(compare: Callable[..., list[Any]], order: int, rows: int, columns: int) -> None:
    compare("column_sums", normal(rows, columns), np.zeros(columns, np.float32), tolerance=1e-5)


def test_column_sums_of_more_chunks_than_a_grid_has_rows_of_blocks(
    compare: Callable[..., list[Any]], kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    grids: list[tuple[int, ...]] = []
    plain = kernels.launch
    monkeypatch.setattr(launch, "GRID_Y", 4)
    monkeypatch.setattr(kernels, "launch", lambda *given: grids.append(given[3]) or plain(*given))
    compare("column_sums", normal(6 * CHUNK + 1, 3), np.zeros(3, np.float32), tolerance=1e-5)
    assert [grid[1] for grid in grids] == [4, 1]


def test_a_bias_over_more_elements_than_are_numbered(stand_in: Any) -> None:
    y = stand_in.ndarray(host=np.broadcast_to(np.float32(0), (1 << 20, 1 << 12)))
    with pytest.raises(ValueError, match="add_bias: 2\\^32 elements"):
        Kernels(stand_in).add_bias(y, stand_in.zeros(1 << 12, np.float32))


#: Image [n, h, w, c], window, stride: even, overlapping, with gaps, not filling the image.
POOLS = [((2, 4, 6, 3), 2, 2), ((1, 7, 9, 5), 3, 2), ((2, 5, 5, 1), 3, 1), ((1, 8, 7, 2), 2, 3), ((1, 3, 3, 4), 3, 3)]


#: Windows of 256 pixels, whose places fit into a byte, and of more.
LARGE = [((1, 17, 16, 3), 16, 1), ((1, 18, 17, 3), 17, 1), ((2, 30, 27, 2), 24, 3)]


@pytest.mark.parametrize(("shape", "size", "stride"), [*POOLS, *LARGE, ((3, 24, 24, 9), 2, 2), ((0, 4, 4, 2), 2, 2)])
def test_max_pool(compare: Callable[..., list[Any]], shape: tuple[int, ...], size: int, stride: int) -> None:
    """To the bit, forward and backward; equal numbers, −0 and NaN as on the CPU."""
    x = np.round(2 * normal(*shape)) / 2  # many are equal
    x.reshape(-1)[::29] = np.nan
    out = np.zeros((shape[0], *((side - size) // stride + 1 for side in shape[1:3]), shape[3]), np.float32)
    place = np.zeros(out.shape, place_type(size))
    _, _, _, out, place = compare("max_pool", x, size, stride, out, place)
    theirs, their_place = np.zeros_like(out), np.zeros_like(place)
    max_pool(x, size, stride, theirs, their_place)
    np.testing.assert_array_equal(out, theirs)
    np.testing.assert_array_equal(place, their_place)
    dy, dx = normal(*out.shape), np.zeros_like(x)
    *_, dx = compare("max_unpool", dy, place, size, stride, dx, tolerance=CLOSE)
    back = np.zeros_like(x)
    max_unpool(dy, place, size, stride, back)
    np.testing.assert_array_equal(dx, back)


PATCHES = [
    ((2, 6, 5, 3), (3, 3), 1, 0),
    ((1, 6, 6, 1), (3, 3), 1, 1),
    ((2, 9, 8, 2), (5, 5), 4, 2),
    ((1, 5, 5, 8), (2, 2), 2, 1),
    ((1, 5, 7, 3), (3, 2), 2, 1),
    ((1, 4, 4, 2), (1, 1), 3, 0),
    ((0, 4, 4, 2), (3, 3), 1, 1),
]


@pytest.mark.parametrize(("shape", "kernel", "stride", "pad"), PATCHES)
def test_patches(
    compare: Callable[..., list[Any]], shape: tuple[int, ...], kernel: tuple[int, int], stride: int, pad: int
) -> None:
    """To the bit, both ways, as on the CPU."""
    n, *sides, channels = shape
    pixels = [(side + 2 * pad - k) // stride + 1 for side, k in zip(sides, kernel, strict=True)]
    patches = normal(n, *pixels, kernel[0] * kernel[1] * channels)
    x, gathered, back = normal(*shape), np.zeros_like(patches), np.zeros(shape, np.float32)
    compare("gather_patches", x, kernel, stride, pad, gathered)
    *_, out = compare("add_patches", patches, kernel, stride, pad, back)
    add_patches(patches, kernel, stride, pad, back)
    np.testing.assert_array_equal(out, back)


LRN = {"scale": 0.3, "power": 0.75}


@pytest.mark.parametrize("half", [0, 1, 2, 9])
@pytest.mark.parametrize("shape", [(0, 2, 2, 5), (1, 1, 1, 1), (2, 3, 3, 7), (1, 5, 5, 40), (1, 2, 1, 300)])
def test_local_response_norm(compare: Callable[..., list[Any]], order: int, shape: tuple[int, ...], half: int) -> None:
    x, dy, zeros = normal(*shape), normal(*shape)[::-1].copy(), np.zeros(shape, np.float32)
    _, y, d = compare("lrn_forward", x, zeros, zeros, half=half, offset=2.0, **LRN, tolerance=CLOSE)
    *_, dx = compare("lrn_backward", x, d, dy, zeros, half=half, **LRN, tolerance=CLOSE)
    layer = LocalResponseNormOptions(2 * half + 1, offset=2.0, **LRN).make()
    layer.connect(shape[1:])
    np.testing.assert_allclose(y, layer.forward({}, x), atol=1e-6)
    np.testing.assert_allclose(dx, layer.backward({}, {}, dy), atol=1e-5)


def test_a_window_wider_than_the_kernels(xp: Any, kernels: Kernels) -> None:
    x = xp.zeros((1, 100), np.float32)
    with pytest.raises(ValueError, match="at most 32"):
        kernels.lrn_forward(x, x, x, half=HALF_MAX + 1, scale=1, power=1, offset=1)


def test_a_layer_with_such_a_window_is_refused_when_the_network_is_built(xp: Any, kernels: Kernels) -> None:
    """Unless there are fewer channels than that."""
    workspace, layer = Workspace(xp, kernels), LocalResponseNormOptions(2 * HALF_MAX + 3).make()
    assert layer.connect((1, 1, HALF_MAX + 1), "norm1", workspace) == (1, 1, HALF_MAX + 1)
    with pytest.raises(BadInput, match="norm1: a window has at most 65 channels on this device"):
        layer.connect((1, 1, 100), "norm1", workspace)


@pytest.mark.parametrize("before", [0, 1, 2, 7, 8, 13])
@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (3, 5), (8, 8), (70, 31)])
@pytest.mark.parametrize("share", [None, (0, 90), (3, 90)])
def test_dropout(xp: Any, kernels: Kernels, before: int, shape: tuple[int, int], share: tuple[int, int] | None) -> None:
    """The units that the layer drops on the CPU, wherever the generator stands, and it stands as far afterwards."""
    ours, theirs = stream(5, "dropout", 1), stream(5, "dropout", 1)
    for each in (ours, theirs):
        each.random(before, dtype=np.float32)
    x = normal(*shape)
    y, scale = Guarded(xp, np.zeros_like(x)), Guarded(xp, np.zeros_like(x))
    kernels.dropout(xp.asarray(x), y.device, scale.device, ours, 0.3, 1 / 0.7, share)
    layer = DropoutOptions(0.3).make()
    layer.connect(shape[1:])
    expected_y, expected_scale = np.zeros_like(x), np.zeros_like(x)
    reference.dropout(x, expected_y, expected_scale, theirs, 0.3, 1 / 0.7, share)
    np.testing.assert_array_equal(scale.host(), expected_scale)
    np.testing.assert_array_equal(y.host(), expected_y)
    assert ours.random(20, dtype=np.float32).tolist() == theirs.random(20, dtype=np.float32).tolist()
    again = stream(5, "dropout", 1)
    again.random(before, dtype=np.float32)
    np.testing.assert_array_equal(layer.forward({}, x, True, Draws(again, share)), expected_y)


def test_dropout_wants_the_generator_of_the_streams(xp: Any, kernels: Kernels) -> None:
    x = xp.zeros((1, 1), np.float32)
    with pytest.raises(TypeError, match="Philox, not PCG64"):
        kernels.dropout(x, x, x, np.random.default_rng(0), 0.5, 2.0)
