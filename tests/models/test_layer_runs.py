"""Trainings of networks that the configuration lists."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mpitrain import config as configuration
from mpitrain.models.design import to_lines
from mpitrain.training.inputs import design_of

SHORT = ("--set", "training.epochs=0.2", "--set", "training.minibatch=8", "--set", "run.evaluate_every=0")

LISTED = """
[[model.layers]]
kind = "dropout"
rate = 0.1

[[model.layers]]
kind = "convolution"
filters = 6
kernel = 3
pad = 1

[[model.layers]]
kind = "relu"

[[model.layers]]
kind = "local-response-norm"

[[model.layers]]
kind = "max-pool"
size = 2

[[model.layers]]
kind = "fully-connected"
units = 6
columns = 2
gain = 8

[[model.layers]]
kind = "sigmoid"

[[model.layers]]
kind = "dropout"
rate = 0.2

[[model.layers]]
kind = "fully-connected"
"""


def summary(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found


def test_the_layers_of_a_preset_train_like_the_preset(launch: Callable[..., Any], tmp_path: Path) -> None:
    """To the same bits; a resumed run and `evaluate` build the network of config.toml."""
    layers = design_of(configuration.load(None, ["model.width=0.5"])).layers
    (tmp_path / "own.toml").write_text("[model]\n" + "\n".join(to_lines(layers)) + "\n")
    name = ("--set", "algorithm.name=allreduce")
    assert launch(2, *name, *SHORT, "--set", "model.width=0.5", "--out", "preset").status == 0
    own = launch(2, "own.toml", *name, *SHORT, "--out", "own")
    assert own.status == 0 and "10 classes; model.layers: " in own.out, own.err
    assert summary(tmp_path / "own")["parameters_sha256"] == summary(tmp_path / "preset")["parameters_sha256"]

    assert launch(1, "--resume", "own", "--set", "training.epochs=0.3").status == 0
    ended = launch(1, "evaluate", "own", "--json")
    assert json.loads(ended.out)["test_loss"] == pytest.approx(summary(tmp_path / "own")["test_loss"], rel=1e-5)


@pytest.mark.parametrize("name", ["hybrid", "easgd"])
def test_they_are_trained(simulated: Callable[..., Any], tmp_path: Path, name: str) -> None:
    (tmp_path / "own.toml").write_text(LISTED)
    ended = simulated(2, "own.toml", "--set", f"algorithm.name={name}", *SHORT, "--out", "run")
    assert ended.status == 0, ended.err
    assert summary(tmp_path / "run")["samples"] > 250


def test_pretraining_of_listed_layers(simulated: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(LISTED)
    settings = ("--set", "pretraining.method=layerwise", "--set", "pretraining.samples=200")
    ended = simulated(2, "own.toml", *settings, *SHORT, "--out", "run")
    assert ended.status == 0 and "pre-trained layer 2 of 2" in ended.out, ended.err


def test_a_list_that_does_not_fit_ends_with_one_line(simulated: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(LISTED.replace("kernel = 3", "kernel = 11"))
    ended = simulated(2, "own.toml", "--out", "run")
    lines = [line for line in ended.err.splitlines() if line.startswith("mpitrain:")]
    assert ended.status == 2 and len(lines) == 1 and not (tmp_path / "run").exists()
    assert "model.layers[1].kernel = 11: a kernel of 11 x 11 does not fit 8 x 8 pixels" in lines[0]
