"""`allreduce` in a loop of one's own: the gradient of all samples, whoever computed it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs PyTorch (the extra mpitrain[torch])")
LOADED = ("torch._dynamo", "mpitrain.api.loop")
PROGRAM = str(Path(__file__).with_name("summed.py"))


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_gradients_are_those_of_one_process(launch: Callable[..., Any], ranks: int) -> None:
    """With a last round that is cut up, parameters that some or all ranks do not use, and two batches to a step."""
    ended = launch(ranks, program=(PROGRAM,))
    assert ended.status == 0, ended.err
    assert ended.out.count("as alone") == ranks
