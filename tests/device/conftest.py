"""A GPU for the tests: the true one with `--device gpu`, else the stand-in over host memory."""

from collections.abc import Iterator
from typing import Any

import pytest

from mpitrain.device.gpu import Gpu


@pytest.fixture
def gpu(cupy: Any) -> Iterator[Gpu]:
    """The device."""
    before = cupy.cuda.get_current_stream()
    yield Gpu(cupy, 0)
    before.use()
