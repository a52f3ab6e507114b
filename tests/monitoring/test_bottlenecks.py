"""What keeps a training from being sooner, by its summary."""

from typing import Any

import pytest

from mpitrain.monitoring.records import bottlenecks

IDLE = {"rank": 0, **dict.fromkeys(("computing", "data", "communication", "evaluation", "rest"), 0.0), "waiting": 10.0}
BUSY = {**IDLE, "rank": 1, "computing": 7.0, "waiting": 3.0}


@pytest.mark.parametrize(
    ("summary", "said"),
    [
        ({"time": [IDLE, BUSY], "staleness_mean": None}, []),  # a server's waiting does not count
        ({"time": [IDLE, {**BUSY, "waiting": 7.0}]}, ["workers wait 50% of their time"]),
        ({"staleness_mean": 4.25}, ["gradients are 4.2 updates old"]),
        ({"seconds": 10.0, "link_busy_seconds": 9.7}, ["a node's link is busy 97% of the time"]),
        (
            {"seconds": 10.0, "server_busy_seconds": 9.2, "link_busy_seconds": 5.0},
            ["the server is busy 92% of the time"],
        ),
        (
            {"seconds": 10.0, "resumed_seconds": 8.0, "server_busy_seconds": 1.9, "link_busy_seconds": 1.0},
            ["the server is busy 95% of the time"],  # since the resume
        ),
        ({}, []),
    ],
)
def test_what_is_said(summary: dict[str, Any], said: list[str]) -> None:
    assert bottlenecks(summary) == said
