"""Kernels beside their references: on the host through tests/fake_cupy, or with `--device gpu` on the GPU."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from mpitrain.kernels.launch import Kernels
from tests.kernels import reference

#: Elements before and after every array that no kernel may touch; odd, so that arrays are aligned to no more than one.
MARGIN = 17
MARK = 0xA5


@pytest.fixture(scope="session")
def xp(cupy: Any) -> Any:
    """CuPy, or the stand-in, as array modules are called."""
    return cupy


@pytest.fixture(scope="session")
def kernels(xp: Any) -> Kernels:
    """The functions of `launch`."""
    return Kernels(xp)


@pytest.fixture(params=[0, 1, 7], ids="order {}".format)
def order(request: pytest.FixtureRequest, xp: Any) -> Iterator[int]:
    """Run blocks and threads one after another, then in two adversarial orders; a GPU has an order of its own."""
    if not hasattr(xp, "Order"):
        if request.param:
            pytest.skip("a GPU runs blocks in its own order")
        yield 0
        return
    xp.Order.seed = request.param
    yield request.param
    xp.Order.seed = 0


class Guarded:
    """A copy of an array on the device, between margins."""

    def __init__(self, xp: Any, array: np.ndarray) -> None:
        raw = np.full((array.size + 2 * MARGIN) * array.itemsize, MARK, np.uint8).view(array.dtype)
        raw[MARGIN : MARGIN + array.size] = array.reshape(-1)
        self.all = xp.asarray(raw)
        self.device = self.all[MARGIN : MARGIN + array.size].reshape(array.shape)

    def host(self) -> np.ndarray:
        """The array now. Fails when something was written outside it."""
        raw = self.all.get().view(np.uint8)
        outside = MARGIN * self.all.dtype.itemsize
        assert (raw[:outside] == MARK).all(), "something was written before the array"
        assert (raw[-outside:] == MARK).all(), "something was written after the array"
        return np.asarray(self.device.get())


@pytest.fixture
def compare(xp: Any, kernels: Kernels) -> Callable[..., list[Any]]:
    """compare(name, *arguments, tolerance=…, **scalars): run a kernel and its reference on copies of the same arrays.

    Every array must agree: to the bit, or within `tolerance` of its largest element. The arrays after the kernel.
    """

    def run(name: str, *arguments: Any, tolerance: float = 0.0, **scalars: Any) -> list[Any]:
        guarded = [Guarded(xp, each) if isinstance(each, np.ndarray) else each for each in arguments]
        expected = [each.copy() if isinstance(each, np.ndarray) else each for each in arguments]
        getattr(kernels, name)(*(each.device if isinstance(each, Guarded) else each for each in guarded), **scalars)
        getattr(reference, name)(*expected, **scalars)
        results = [each.host() if isinstance(each, Guarded) else each for each in guarded]
        for place, (result, wanted) in enumerate(zip(results, expected, strict=True)):
            if isinstance(wanted, np.ndarray):
                same(result, wanted, tolerance, f"{name}, argument {place}")
        return results

    return run


def same(result: np.ndarray, wanted: np.ndarray, tolerance: float, what: str) -> None:
    """Equal to the bit (any NaN is NaN), or within `tolerance` of the largest."""
    assert (result.dtype, result.shape) == (wanted.dtype, wanted.shape), what
    if tolerance:
        finite = np.abs(wanted[np.isfinite(wanted)])
        np.testing.assert_allclose(result, wanted, 0, tolerance * max(finite.max(initial=0), 1e-30), err_msg=what)
    else:
        np.testing.assert_array_equal(result, wanted, err_msg=what)
        if wanted.dtype.kind == "f":  # −0 is not 0
            number = ~np.isnan(wanted)
            np.testing.assert_array_equal(np.signbit(result[number]), np.signbit(wanted[number]), err_msg=what)
