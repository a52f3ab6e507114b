"""The examples run as their README says, on less data."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mpitrain.__main__ import main

from .conftest import make_frames

pytest.importorskip("torch", reason="needs PyTorch (the extra mpitrain[torch])")

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", ["resnet", "tdnn", "transformer"])
def test_an_example_trains(name: str, launch: Callable[..., Any], tmp_path: Path) -> None:
    if not EXAMPLES.is_dir():
        pytest.skip("the examples are not in this folder")
    shutil.copytree(EXAMPLES / name, tmp_path, dirs_exist_ok=True)
    less = ["run.threads=1", "run.progress=none", "training.epochs=0.5"]
    if name == "tdnn":
        make_frames(tmp_path / "shards", (300, 200, 400))
        less += ["training.minibatch=32", "model.options.units=8"]
    if name == "transformer":
        (tmp_path / "text").write_text("a text that is short enough\n" * 400)
        assert main(["prepare", "text", str(tmp_path / "text"), str(tmp_path / "shards")]) == 0
        less += ["training.epochs=1", "data.window=64", "model.options.width=16", "model.options.depth=2"]
    settings = [word for each in less for word in ("--set", each)]
    ended = launch(2, "config.toml", *settings, "--out", "run")
    assert ended.status == 0, ended.err
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["exit_reason"] == "finished" and 0 <= summary["test_error"] < 1
