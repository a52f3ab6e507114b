"""`mpitrain describe`."""

import re
from pathlib import Path

import pytest

from mpitrain.__main__ import main
from mpitrain.models.presets import PRESETS
from mpitrain.training.step_times import StepTimes


def described(capsys: pytest.CaptureFixture[str], *settings: str) -> tuple[str, dict[str, list[str]]]:
    """The first line, and the cells of each layer from the shape of its output on."""
    assert main(["describe", *settings]) == 0
    first, _, *rows = capsys.readouterr().out.splitlines()
    return first, {row.split()[0]: re.split(r" {2,}", row.rstrip())[-3:] for row in rows if not row.startswith(" ")}


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_described_on_its_own_inputs(capsys: pytest.CaptureFixture[str], preset: str) -> None:
    first, rows = described(capsys, "--set", f"model.preset={preset}")
    assert first.startswith(f"model.preset = '{preset}': inputs of ") and "total" in rows


def test_alexnet_in_one_tower(capsys: pytest.CaptureFixture[str]) -> None:
    """Parameters by hand: 23,296 + 307,392 + 663,936 + 884,992 + 590,080 + 37,752,832 + 16,781,312 + 4,097,000."""
    rows = described(capsys, "--set", "model.preset=krizhevsky2014")[1]
    assert rows["total"][-2:] == ["61,100,840", "714,188,480"]
    assert rows["conv1"] == ["55 x 55 x 64", f"{11 * 11 * 3 * 64 + 64:,}", f"{55 * 55 * 64 * 11 * 11 * 3:,}"]
    assert rows["conv5"] == ["6 x 6 x 256", f"{9 * 256 * 256 + 256:,}", f"{13 * 13 * 256 * 9 * 256:,}"]  # then pooled
    assert rows["fc1"] == ["4096", f"{9216 * 4096 + 4096:,}", f"{9216 * 4096:,}"]
    assert rows["norm1"][-2:] == ["0", "0"]


def test_a_narrow_terminal_keeps_the_layers_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert {"conv1", "relu1", "fc2", "total"} <= set(described(capsys)[1])


def test_inputs_are_those_of_the_data_or_as_told(capsys: pytest.CaptureFixture[str]) -> None:
    layers = ("--set", 'model.layers=[{kind="fully-connected", gain=1}]')
    first, rows = described(capsys, *layers, "--set", "data.crop=4")
    assert first == "model.layers: inputs of 4 x 4 x 1, 10 classes, softmax, l2 0"
    assert rows["total"][-2:] == ["170", "160"]
    first, rows = described(capsys, *layers, "--input", "11x40", "--classes", "3")
    assert first == "model.layers: inputs of 11 x 40, 3 classes, softmax, l2 0"
    assert rows["fc1"] == ["3", f"{440 * 3 + 3:,}", f"{440 * 3:,}"]


def test_a_step_is_timed_by_all_that_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", "--time", "--set", "run.threads=1"]) == 0
    said, *rows = capsys.readouterr().out.partition("a step of ")[2].splitlines()
    names = [row.partition("  ")[0] for row in rows]
    assert said.startswith("32 samples on 1 thread, ") and names[0] == "NumPy"
    assert names[1:] in ([], ["PyTorch", "PyTorch in bf16"]) and all(" ms " in row for row in rows)


def test_slow_steps_are_written_without_exponents(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("mpitrain.cli.describe.find_spec", lambda name: None)
    monkeypatch.setattr("mpitrain.cli.describe.timed", lambda *_: StepTimes(32, [12.5]))
    assert main(["describe", "--time"]) == 0
    assert " 12,500.00 ms " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (("--input", "8*8"), "--input 8*8: expected numbers"),
        (("--input", "0x8"), "--input 0x8: expected numbers"),
        (("--input", "8x8x8x8"), "--input 8x8x8x8: expected numbers"),
        (("--classes", "0"), "0 classes"),
        (("--set", "data.path=nowhere"), "nowhere: no such folder"),
        (("--set", "model.preset=digits"), "model.preset: unknown 'digits'"),
        (("--input", "3x3x1", "--set", "model.preset=easgd-cifar"), "does not fit images of 3 x 3 x 1"),
        (("none.toml",), "none.toml"),
    ],
)
def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], settings: tuple[str, ...], line: str) -> None:
    assert main(["describe", *settings]) == 2
    err = capsys.readouterr().err
    assert line in err and err.count("\n") == 1


NET = """
from torch import nn

def build(input_shape, classes, fixed=False):
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.BatchNorm1d(5), nn.Linear(5, classes))
    net.spare = nn.Linear(2, 3)
    net.forward = lambda x: net[3](net[2](net[1](net[0](x))))
    net[1].bias.requires_grad_(not fixed)
    return net
"""


def test_a_module_is_described_by_its_parameters(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By hand: 64 · 5 + 5 + 5 + 5 + 5 · 10 + 10 + 2 · 3 + 3 = 404 numbers, or 399 and 5 that are constant."""
    pytest.importorskip("torch", reason="needs PyTorch (the extra mpitrain[torch])")
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NET)
    own = ("--set", "model.import=net.py:build")
    for fixed, total in ((False, "404"), (True, "399")):
        assert main(["describe", *own, "--set", f"model.options.fixed={str(fixed).lower()}"]) == 0
        first, _, *rows, memory, trial = capsys.readouterr().out.splitlines()
        cells = {row.split()[0]: re.split(r" {2,}", row.rstrip())[1:] for row in rows}
        assert first == "model.import = 'net.py:build': inputs of 8 x 8 x 1, 10 classes, softmax"
        assert cells["1.weight"] == ["5 x 64", "320"] and cells["total"] == [total]
        assert cells["1.bias"] == (["5", "(5)", "constant"] if fixed else ["5", "5"])
        assert cells["spare.bias"] == ["3", "3", "the trial's gradient is 0"]
        assert memory == "memory: asgd keeps 3 vectors of 0.00 MB on each rank" and "the loss is " in trial
    images = """
def images(input_shape, classes):
    assert input_shape == (3, 6, 5), input_shape
    return nn.Sequential(nn.Conv2d(3, 2, (6, 5)), nn.Flatten(), nn.Linear(2, classes))
"""
    Path("net.py").write_text(NET + images)
    assert main(["describe", "--set", "model.import=net.py:images", "--input", "6x5x3"]) == 0
    assert "inputs of 6 x 5 x 3, 10 classes" in capsys.readouterr().out
    assert main(["describe", *own, "--classes", "7", "--input", "4x4x1"]) == 2
    assert "cannot be trained" in capsys.readouterr().err
