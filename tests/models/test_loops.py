"""Single-pass loops against the NumPy expression they stand for."""

import numpy as np
import pytest

from mpitrain.models.layers.local_response_norm import channel_window_sum
from mpitrain.models.layers.relu import relu_backward
from mpitrain.models.layers.sigmoid import sigmoid_backward
from mpitrain.models.workspace import add_scaled


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_derivatives_from_outputs(dtype: type) -> None:
    rng = np.random.default_rng(0)
    y, dy = rng.random((3, 11)).astype(dtype), rng.standard_normal((3, 11)).astype(dtype)
    y[0, :4] = 0
    through = dy.copy()
    relu_backward(y, through)
    np.testing.assert_array_equal(through, np.where(y > 0, dy, 0))
    through = dy.copy()
    sigmoid_backward(y, through)
    np.testing.assert_allclose(through, dy * y * (1 - y), rtol=1e-6)


def test_relu_backward_gives_exact_zeros() -> None:
    """Also where the gradient is infinite, and no −0: the share of exact zeros is a metric."""
    dy = np.array([-3.0, np.inf, np.nan])
    relu_backward(np.zeros(3), dy)
    np.testing.assert_array_equal(dy, [0, 0, 0])
    assert not np.signbit(dy).any()


def test_add_scaled_stays_in_the_dtype() -> None:
    y, x = np.ones((2, 3), np.float32), np.full((2, 3), 2, np.float32)
    add_scaled(y, x, 0.1)
    np.testing.assert_array_equal(y, np.float32(1) + np.float32(0.1) * np.float32(2))


@pytest.mark.parametrize("half", [0, 1, 2, 9])
def test_channel_window_sum(half: int) -> None:
    """On powers of ten the sum shows which channels it took."""
    x = 10.0 ** np.arange(5)
    out = np.empty(5)
    channel_window_sum(x.reshape(1, 1, 1, 5), half, out.reshape(1, 1, 1, 5))
    expected = [sum(x[j] for j in range(5) if abs(i - j) <= half) for i in range(5)]
    np.testing.assert_array_equal(out, expected)
