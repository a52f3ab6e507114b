"""Patches against NumPy's windows, and the adjoint law."""

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

from mpitrain.models.patches import add_patches, gather_patches

CASES = [
    ((2, 6, 5, 3), 3, 1, 0),
    ((1, 6, 6, 1), 3, 1, 1),
    ((2, 9, 8, 2), 5, 4, 2),
    ((1, 5, 5, 8), 2, 2, 1),
    ((1, 4, 4, 3), 3, 1, 2),
]


def output_shape(shape: tuple[int, ...], kernel: int, stride: int, pad: int) -> tuple[int, ...]:
    n, h, w, c = shape
    return n, (h + 2 * pad - kernel) // stride + 1, (w + 2 * pad - kernel) // stride + 1, kernel * kernel * c


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("shape", "kernel", "stride", "pad"), CASES)
def test_gather_is_numpys_windows(shape: tuple[int, ...], kernel: int, stride: int, pad: int, dtype: type) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    out = np.full(output_shape(shape, kernel, stride, pad), np.nan, dtype)
    gather_patches(x, (kernel, kernel), stride, pad, out)
    padded = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    windows = sliding_window_view(padded, (kernel, kernel), (1, 2))[:, ::stride, ::stride]
    np.testing.assert_array_equal(out, windows.transpose(0, 1, 2, 4, 5, 3).reshape(out.shape))


@pytest.mark.parametrize(("shape", "kernel", "stride", "pad"), CASES)
def test_add_is_the_adjoint_of_gather(shape: tuple[int, ...], kernel: int, stride: int, pad: int) -> None:
    """⟨gather(x), p⟩ = ⟨x, add(p)⟩."""
    rng = np.random.default_rng(1)
    x, back = rng.standard_normal(shape), np.full(shape, np.nan)
    p = rng.standard_normal(output_shape(shape, kernel, stride, pad))
    gathered = np.empty_like(p)
    gather_patches(x, (kernel, kernel), stride, pad, gathered)
    add_patches(p, (kernel, kernel), stride, pad, back)
    assert np.vdot(gathered, p) == pytest.approx(np.vdot(x, back), rel=1e-12)
