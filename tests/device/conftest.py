"""A GPU for the tests: the true one with `--device gpu`, else the stand-in over host memory."""

from collections.abc import Iterator
from typing import Any

import pytest

from mpitrain.device.gpu import Gpu


@pytest.fixture
def gpu(cupy: Any) -> Iterator[Gpu]:
    """The device."""
    device = Gpu(cupy, 0)
    yield device
    device.compute.__exit__()


@pytest.fixture
def launched(cupy: Any) -> Any:
    """What is launched from now on, by name, with "copy of an operand" and "wait"; of true GPUs nothing is known."""
    found = getattr(cupy.cuda, "launched", [])
    found.clear()
    return found


@pytest.fixture
def aware(cupy: Any) -> None:
    """For tests that hand the device's memory to MPI. The stand-in's any MPI takes."""
    from mpitrain.mpi import cuda_aware

    if cupy.__version__ != "0.fake" and not cuda_aware()[0]:
        pytest.skip("this MPI is not CUDA-aware")


@pytest.fixture(params=["staged", "direct"])
def direct(request: pytest.FixtureRequest) -> bool:
    """Whether MPI is handed the device's memory: both."""
    if request.param == "direct":
        request.getfixturevalue("aware")
    return bool(request.param == "direct")
