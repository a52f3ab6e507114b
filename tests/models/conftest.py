"""PyTorch's models on a GPU, for the tests of all models."""

from collections.abc import Callable
from typing import Any

import pytest

from . import torch_modules
from .hosted import Hosted


@pytest.fixture
def on_gpu(torch_gpu: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test's models of PyTorch's are on the device, and take and give arrays of the host."""

    def placed(kind: Callable[..., Any]) -> Callable[..., Hosted]:
        return lambda *of, **settings: Hosted(kind(*of, **settings, place=torch_gpu.place()), torch_gpu)

    for module in (torch_modules, request.module):
        for name in ("TorchModel", "TorchNetwork"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, placed(getattr(module, name)))


@pytest.fixture(autouse=True)
def _where_it_is_wanted(request: pytest.FixtureRequest) -> None:
    """With `--device gpu` in all tests."""
    wanted = hasattr(request.module, "torch") or str(request.node.name).count("torch")
    if wanted and request.config.getoption("--device") == "gpu":
        request.getfixturevalue("on_gpu")
