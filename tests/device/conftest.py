"""What the tests of the device know of it."""

from typing import Any

import pytest


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
