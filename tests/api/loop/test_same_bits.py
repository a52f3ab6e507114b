"""A loop of one's own and the trainer come to the same parameters, to the bit, where they can train the same."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs PyTorch (the extra mpitrain[torch])")
LOADED = ("torch._dynamo", "mpitrain.api.loop")
PROGRAM = str(Path(__file__).with_name("same_bits.py"))
#: With samples that three ranks' minibatches of 24 do not divide.
TRAININGS = (
    ("allreduce", "perceptron", {"bucket_mb": 0.1}),
    ("block-momentum", "perceptron", {"tau": 5, "momentum": 0.5, "look_ahead": "start"}),
    ("easgd-sync", "perceptron", {"tau": 5}),
    ("allreduce", "transformer", {"bucket_mb": 0.05}),
    ("block-momentum", "transformer", {"tau": 3}),
)
SAMPLES = {"perceptron": 1438, "transformer": 243}


def test_the_trainer_comes_to_the_same_bits(launch: Callable[..., Any]) -> None:
    """On all samples twice, with rounds at the end in which ranks have fewer."""
    words = [word for name, network, keys in TRAININGS for word in (name, network, json.dumps(keys))]
    ended = launch(3, *words, program=(PROGRAM,))
    assert ended.status == 0, ended.err
    told = [json.loads(line) for line in ended.out.splitlines() if line.startswith("[")]
    assert [(name, network) for name, network, *_ in told] == [(name, network) for name, network, _ in TRAININGS]
    for _, network, trainer, loop, samples in told:
        assert trainer == loop and samples == 2 * SAMPLES[network]
    assert len({trainer for _, _, trainer, *_ in told}) == len(TRAININGS)
