"""A loop of one's own and the trainer come to the same parameters, to the bit, where they can train the same."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs PyTorch (the extra mpitrain[torch])")
PROGRAM = str(Path(__file__).with_name("same_bits.py"))
TRAININGS = {
    "allreduce": {"bucket_mb": 0.1},
    "block-momentum": {"tau": 5, "momentum": 0.5, "look_ahead": "start"},
    "easgd-sync": {"tau": 5},
}


def test_the_trainer_comes_to_the_same_bits(launch: Callable[..., Any]) -> None:
    """On 1,438 samples, which three ranks' minibatches of 24 do not divide."""
    words = [word for name, keys in TRAININGS.items() for word in (name, json.dumps(keys))]
    ended = launch(3, *words, program=(PROGRAM,))
    assert ended.status == 0, ended.err
    told = [json.loads(line) for line in ended.out.splitlines() if line.startswith("[")]
    assert [name for name, *_ in told] == list(TRAININGS)
    for _, trainer, loop, samples in told:
        assert trainer == loop and samples == 2 * 1438
    assert len({trainer for _, trainer, *_ in told}) == len(TRAININGS)
