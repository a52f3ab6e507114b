"""Running statistics and other buffers after a loop of one's own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs PyTorch (the extra mpitrain[torch])")
LOADED = ("torch._dynamo", "mpitrain.api.loop")


def test_all_ranks_have_the_mean_of_theirs(launch: Callable[..., Any]) -> None:
    """Half of the start's 0 and 1, half of the batch's: means 1/2 and 6, variances 1.5 and 4.5."""
    ended = launch(2, program=(str(Path(__file__).with_name("normalised.py")),))
    assert ended.status == 0, ended.err
    assert [line for line in ended.out.splitlines() if line] == ["statistics: 3.25 3.0 1"] * 2


def test_buffers_that_differ_remain_the_ranks_own(launch: Callable[..., Any]) -> None:
    ended = launch(2, program=(str(Path(__file__).with_name("enlarged.py")),))
    assert ended.status == 0, ended.err
    assert sorted(filter(None, ended.out.splitlines())) == ["rank 0: 3 -1.0", "rank 1: 5 -1.0"]
