"""A GPU for the tests: the true one with `--device gpu`, else the stand-in over host memory."""

import importlib.util
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mpitrain.device.gpu import Gpu

FAKE = Path(__file__).resolve().parent.parent / "fake_cupy" / "cupy" / "__init__.py"


def fake_cupy() -> Any:
    """The stand-in, under a name of its own, so that the true CuPy can be there too."""
    if "fake_cupy" not in sys.modules:
        spec = importlib.util.spec_from_file_location("fake_cupy", FAKE, submodule_search_locations=[str(FAKE.parent)])
        assert spec is not None and spec.loader is not None
        sys.modules["fake_cupy"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules["fake_cupy"]


@pytest.fixture(scope="session")
def cupy(request: pytest.FixtureRequest) -> Any:
    """CuPy, or the stand-in."""
    if request.config.getoption("--device") == "gpu":
        return pytest.importorskip("cupy", reason="CuPy is not installed")
    if shutil.which("g++") is None:
        pytest.skip("g++, which compiles the kernels for the host, is not installed")
    return fake_cupy()


@pytest.fixture
def gpu(cupy: Any) -> Iterator[Gpu]:
    """The device."""
    before = cupy.cuda.get_current_stream()
    yield Gpu(cupy, 0)
    before.use()
