"""Paths of any characters, and of bytes that are no characters, from Python and from the command line."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mpitrain
from mpitrain.config import overrides_of, set_key
from mpitrain.data.digits import prepare_digits
from mpitrain.errors import BadInput
from mpitrain.files import Record

TABLE: dict[str, object] = {"algorithm.name": "sgd", "training.epochs": 0.1, "run": {"threads": 1, "progress": "none"}}
STRANGE = os.fsdecode(b"o\xff")  # no text in UTF-8


@given(st.dictionaries(st.text("abc"), st.text(), min_size=1), st.text())
def test_every_text_reaches_the_configuration(table: dict[str, str], text: str) -> None:
    found: Record = {}
    for override in overrides_of({"one": text, "two": [{key: value} for key, value in table.items()]}):
        set_key(found, override)
    assert found == {"one": text, "two": [{key: value} for key, value in table.items()]}


@given(st.floats())
def test_every_number_reaches_the_configuration(number: float) -> None:
    found: Record = {}
    for override in overrides_of({"one": number, "two": [number]}):
        set_key(found, override)
    assert repr(found) == repr({"one": number, "two": [number]})


@given(st.dates() | st.datetimes() | st.integers() | st.booleans(), st.lists(st.floats(width=32, allow_nan=False)))
def test_every_value_of_toml_and_numpy_reaches_the_configuration(value: object, numbers: list[float]) -> None:
    found: Record = {}
    for override in overrides_of({"one": value, "two": [{"three": value}], "four": np.array(numbers)}):
        set_key(found, override)
    assert found == {"one": value, "two": [{"three": value}], "four": numbers}


@pytest.mark.parametrize("value", [None, {1}, b"a", [object]])
def test_other_values_are_refused_by_their_key(value: object) -> None:
    with pytest.raises(BadInput, match=r"model\.options\.a = .*: not a value of TOML's"):
        mpitrain.train({"model.options": {"a": value}})


@pytest.mark.parametrize("name", ["é", "💥", 'a "b"\\c', "\x7f", "a\nb"])
def test_train_takes_paths_of_any_characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Of data, run folder and configuration."""
    monkeypatch.chdir(tmp_path)
    prepare_digits(tmp_path / name / "shards")
    told = mpitrain.train({**TABLE, "data.path": f"{name}/shards"}, out=f"{name}/run")
    assert told["run_folder"] == f"{name}/run" and mpitrain.load(f"{name}/run").run.config.data.path == f"{name}/shards"
    configured = (tmp_path / name / "run/config.toml").read_text()
    (tmp_path / name / "a.toml").write_text(configured)
    assert mpitrain.train(f"{name}/a.toml", out=f"{name}/again")["parameters_sha256"] == told["parameters_sha256"]


def test_a_key_that_is_not_utf_8_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The configuration is kept as text."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=r"data\.path=.*not UTF-8"):
        mpitrain.train({**TABLE, "data.path": STRANGE})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"config": 3}, "config: of type int"),
        ({"config": print}, "config: of type builtin_function_or_method"),
        ({"model": 3}, "model: of type int"),
        ({"out": 3}, "out = 3: expected the path of a folder"),
        ({"resume": b"run"}, "resume = b'run': expected the path of a folder"),
        ({"config": "net.toml", "resume": "run"}, "resume: the run has its configuration"),
        ({"trust": True}, "trust: only where a run goes on"),
        ({"new_code": True}, "new_code: only where a run goes on"),
    ],
)
def test_arguments_that_would_be_ignored_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=re.escape(said)):
        mpitrain.train(**given)


PROGRAM = """
import os, mpitrain
folder = os.fsdecode(b"o\\xff")
os.makedirs(folder, exist_ok=True)
os.chdir(folder)
table = {"algorithm.name": "easgd", "algorithm.tau": 1, "run": {"threads": 1, "progress": "none"}}
for place, epochs in (({"out": folder}, 0.2), ({"resume": folder}, 0.3)):
    told = mpitrain.train({**table, "training.epochs": epochs}, **place)
    assert told["run_folder"] == folder and told["exit_reason"] == "finished", told
assert mpitrain.load(folder).run.samples == 431
"""


@pytest.mark.parametrize("ranks", [1, 3])
def test_folders_that_are_not_utf_8(
    launch: Callable[..., Any], alone: Callable[..., Any], tmp_path: Path, ranks: int
) -> None:
    """A run begins, goes on and is used in one, and its files name it in escapes."""
    (tmp_path / "program.py").write_text(PROGRAM)
    ended = launch(ranks, program=("program.py",), deadline=100)
    assert ended.status == 0, ended.err
    run = f"{STRANGE}/{STRANGE}"
    prepare_digits(tmp_path / STRANGE / "shards")
    ended = alone("evaluate", run, "--json")
    assert ended.status == 0 and json.loads(ended.out)["run"].startswith("o\\udcff/"), ended.err
    for suffix in ("h5", "npz", "ark"):
        assert alone("predict", run, f"{STRANGE}/shards", f"{STRANGE}/p.{suffix}").status == 0
    for kind in ("npz", "safetensors", "onnx"):
        ended = alone("export", run, "--format", kind)
        assert ended.status == 0, ended.err
    assert alone("report", run).status == 0
