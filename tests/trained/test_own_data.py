"""Data sets and figures of merit of the user's own through whole trainings, and what is done with their results."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpitrain
from mpitrain.__main__ import main
from mpitrain.algorithms import ALGORITHMS
from mpitrain.data.sampler import epoch_indices

torch = pytest.importorskip("torch", reason="needs PyTorch (the extra mpitrain[torch])")
LOADED = ("torch._dynamo",)
# without PyTorch, "torch" may be a folder of benchmarks
functional = pytest.importorskip("torch.nn.functional", reason="needs PyTorch (the extra mpitrain[torch])")

DATA = """
import numpy as np
from torch.utils.data import Subset, TensorDataset
import torch

def numbers(n):
    x = np.random.default_rng(3).standard_normal((n, 4, 3)).astype(np.float32)
    return x, x.sum(axis=2) ** 2 / 4

def regression(n=300):
    x, y = numbers(n + 50)
    return {"train": (x[:n], y[:n]), "test": TensorDataset(torch.from_numpy(x[n:]), torch.from_numpy(y[n:]))}

class Items:
    asked = []

    def __init__(self, n):
        self.items = list(zip(*numbers(n)))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        Items.asked.append(index)
        return self.items[index]

def items(n=300, clip=1.0):
    whole = Items(n + 50)
    return {"dev": Subset(whole, range(n, n + 50)), "train": Subset(whole, range(n))}

class Words:
    classes = 6

    def __len__(self):
        return 90

    def __getitem__(self, index):
        row = (index + torch.arange(8)) % 6
        return row, (row + 1) % 6

def words():
    return {"train": Words(), "test-long": Words()}

def pictures():
    draw = np.random.default_rng(5)
    y = draw.integers(3, size=400)
    x = draw.standard_normal((400, 8, 8, 1)) + y[:, None, None, None]
    return {"train": (x[:300], y[:300]), "test": (x[300:], y[300:])}

def fails():
    class Torn(Items):
        def __getitem__(self, index):
            if index == 77:
                raise OSError("disk gone")
            return super().__getitem__(index)
    return {"train": Torn(100)}

def returns(what):
    whole = regression()
    return {"list": [1], "none": None, "parts": {"training": 1}, "bad": {"train": 1}, "part": {**whole, "valid": 1},
            "other": {**whole, "dev": (np.zeros((5, 4)), np.zeros((5, 4)))},
            "unknown": {"train": Items(9)}, "classes": {"train": [(0.5, 1), (0.5, 0)]}}[what]
"""
NET = """
from torch import nn
from torch.nn import functional

def build(input_shape, classes):
    assert (input_shape, classes) == ((4, 3), 0), (input_shape, classes)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 20), nn.Tanh(), nn.Linear(20, 4))

def tags(input_shape, classes):
    assert (input_shape, classes) == ((8,), 6)
    return nn.Sequential(nn.Embedding(6, 12), nn.Linear(12, 6))

def squared(outputs, targets):
    return functional.mse_loss(outputs, targets)

def absolute(outputs, targets):
    return (outputs - targets).abs().mean()

def loss(outputs, targets):
    return outputs.mean()

def raises(outputs, targets):
    raise ValueError("no such figure")
"""
KEYS = ("data.import=data.py:regression", "model.import=net.py:build", "model.loss=net.py:squared", "run.progress=none")


def setting(*keys: str, of: tuple[str, ...] = KEYS) -> list[str]:
    return [word for key in (*of, "run.threads=1", "training.learning_rate=0.1", *keys) for word in ("--set", key)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With data and networks of the user's own."""
    monkeypatch.chdir(tmp_path)
    Path("data.py").write_text(DATA)
    Path("net.py").write_text(NET)
    return tmp_path


def numbers(n: int) -> tuple[np.ndarray, np.ndarray]:
    """As in DATA."""
    x = np.random.default_rng(3).standard_normal((n, 4, 3)).astype(np.float32)
    return x, x.sum(axis=2) ** 2 / 4


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "hybrid"])
def test_every_algorithm(simulated: Callable[..., Any], folder: Path, name: str) -> None:
    """The summary's figures are found again by the module."""
    own = ("model.metric=net.py:absolute", f"algorithm.name={name}")
    keys = setting(*own, "training.minibatch=8", "training.epochs=10")  # the default is longer on several ranks
    ended = simulated(1 if name in ("sgd", "msgd", "averaged", "moving-average") else 3, *keys, "--out", "run")
    assert ended.status == 0, ended.err
    told = json.loads(Path("run/summary.json").read_text())
    x, y = (torch.from_numpy(array[300:]) for array in numbers(350))
    outputs = mpitrain.load("run").module()(x).detach()
    assert told["samples"] == 10 * 300 and told["merit"] == "absolute" and told["test_error"] is None
    assert told["test_loss"] == pytest.approx(functional.mse_loss(outputs, y).item(), rel=1e-4)
    assert told["test_absolute"] == pytest.approx((outputs - y).abs().mean().item(), rel=1e-4)


def test_sgd_is_pytorchs_on_items_as_on_arrays(simulated: Callable[..., Any], folder: Path) -> None:
    """Minibatch by minibatch, in float64."""
    keys = setting("training.dtype=float64", "training.minibatch=10", "training.seed=4", "algorithm.name=sgd")
    runs = {"run": "regression", "items": "items", "start": "regression"}
    for run, data in runs.items():
        own = ["training.learning_rate=1e-300"] if run == "start" else []
        ended = simulated(1, *keys, *setting(f"data.import=data.py:{data}", "training.epochs=2", *own), "--out", run)
        assert ended.status == 0, ended.err
    ours, other, theirs = (mpitrain.load(run).module().double() for run in runs)
    x, y = (array[:300].astype(np.float64) for array in numbers(350))
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    for epoch in range(2):
        order = np.array(epoch_indices(4, epoch, 300))
        for which in np.array_split(order, 30):
            optimizer.zero_grad()
            functional.mse_loss(theirs(torch.from_numpy(x[which])), torch.from_numpy(y[which])).backward()
            optimizer.step()
    for one, same, right in zip(ours.parameters(), other.parameters(), theirs.parameters(), strict=True):
        np.testing.assert_array_equal(one.detach().numpy(), same.detach().numpy())
        np.testing.assert_allclose(one.detach().numpy(), right.detach().numpy(), rtol=1e-9, atol=1e-12)


def test_targets_of_every_place_and_pictures_of_layers(simulated: Callable[..., Any], folder: Path) -> None:
    """Whole numbers with a target each are classified by a module; arrays [n, h, w, c] by a network of layers."""
    keys = setting("training.learning_rate=1", of=("data.import=data.py:words", "model.import=net.py:tags"))
    ended = simulated(2, *keys, "--set", "algorithm.name=allreduce", "--set", "training.epochs=60", "--out", "words")
    assert ended.status == 0, ended.err
    told = json.loads(Path("words/summary.json").read_text())
    assert told["test_long_error"] == told["test_error"] == 0 and "merit" not in told
    keys = setting("model.preset=digits-cnn", of=("data.import=data.py:pictures",))
    ended = simulated(3, *keys, "--set", "training.epochs=4", "--out", "pictures")
    assert ended.status == 0, ended.err
    assert json.loads(Path("pictures/summary.json").read_text())["test_error"] < 0.1
    assert main(["evaluate", "pictures", "--part", "test"]) == 0


def test_a_run_folder_of_own_data(
    simulated: Callable[..., Any], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Resumed on other ranks, evaluated, shown, exported; with the code that it was trained with."""
    keys = setting(
        "data.import=data.py:items", "data.options={n=200, clip=inf}", "algorithm.name=easgd", "training.epochs=3"
    )
    assert simulated(3, *keys, "--out", "run").status == 0
    (folder / "data.py").write_text(DATA.replace("** 2 / 4", "* 1000"))  # the run's copy is taken
    ended = simulated(2, "--resume", "run", "--set", "training.epochs=5")
    assert ended.status == 0 and "data/import/data.py, the run's copy" in ended.err, ended.err
    told = json.loads(Path("run/summary.json").read_text())
    assert told["samples"] == 1000 and told["merit"] == "loss" and told["dev_loss"] < 2
    capsys.readouterr()
    assert main(["evaluate", "run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["dev_loss"] == pytest.approx(told["dev_loss"], rel=1e-6)
    assert main(["evaluate", "run"]) == 0 and "on data.py:items" in capsys.readouterr().out
    assert main(["report", "run", "--out", "page.html"]) == 0 and "Dev loss" in Path("page.html").read_text()
    assert main(["export", "run", "--format", "npz"]) == 0
    for command in (["predict", "run", "shards", "out.npz"], ["export", "run", "--format", "onnx"]):
        assert main(command) == 2 and "samples of data.import are prepared by their own code" in capsys.readouterr().err
    shutil.copytree("run", "copy")
    copy = Path("copy/checkpoints/000000001000/data/import/data.py")
    copy.write_text(copy.read_text() + "\n# changed\n")
    assert main(["evaluate", "copy"]) == 0 and "data.py does not match its checksum; skip" in capsys.readouterr().err


def test_the_best_model_is_that_of_one_figure(simulated: Callable[..., Any], folder: Path) -> None:
    """A resume with another figure of merit does not compare it with what the last one was."""
    keys = setting("algorithm.name=sgd", "training.epochs=3")
    assert simulated(1, *keys, "--out", "run").status == 0
    ended = simulated(1, "--resume", "run", "--set", "model.metric=net.py:absolute", "--set", "training.epochs=4")
    assert ended.status == 0, ended.err
    told, best = json.loads(Path("run/summary.json").read_text()), mpitrain.load("run", "best")
    assert told["merit"] == "absolute" and best.run.samples == 1200


def test_compare_takes_the_figure_of_merit(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = [word for key in (*KEYS, "model.metric=net.py:absolute", "training.epochs=4") for word in ("--set", key)]
    mpirun = Path(sys.executable).with_name("mpirun")
    command = ["compare", "sgd", "msgd", "--launch", f"{mpirun} -n {{ranks}}", *own]
    assert main([*command, "--target-error", "1.2"]) == 0, capsys.readouterr().err
    said = capsys.readouterr().out
    assert "time to 1.2" in said and "final absolute" in said and "test absolute" in said
    assert "until the test absolute was" in said and "error" not in said


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (("data.import=data.py:fails",), "sample 77 of part train: cannot be read: OSError: disk gone"),
        (("data.import=data.py:nothing",), "there is no function nothing"),
        (("data.import=none.py:build",), "none.py"),
        (("data.options={m=1}",), "data.import = 'data.py:regression': cannot be called: TypeError"),
        (("data.options={what='list'}", "data.import=data.py:returns"), "returned list, not a table"),
        (("data.options={what='none'}", "data.import=data.py:returns"), "returned NoneType, not a table"),
        (("data.options={what='parts'}", "data.import=data.py:returns"), "a table of training, not a table of data"),
        (("data.options={what='bad'}", "data.import=data.py:returns"), "part train: is int: neither"),
        (("data.options={what='part'}", "data.import=data.py:returns"), "'data.py:returns': valid: a part is called"),
        (("data.options={what='other'}", "data.import=data.py:returns"), "part dev has 4 numbers, the network was"),
        (("data.path=shards",), "data.path: of shards; what data.import"),
        (("data.window=3",), "data.window: of shards"),
        (("data.context=[1]",), "data.context: of shards"),
        (("model.metric=net.py:loss",), "model.metric = 'net.py:loss': call it otherwise"),
        (("model.metric=net.py:raises",), "model.metric: cannot be computed: ValueError: no such figure"),
        (("model.metric=net.py",), "model.metric = 'net.py': expected"),
        (("model.loss=net.py:raises",), "model.loss: cannot be computed: ValueError: no such figure"),
    ],
)
@pytest.mark.parametrize("ranks", [1, 3])
def test_wrong_use(simulated: Callable[..., Any], folder: Path, ranks: int, keys: tuple[str, ...], words: str) -> None:
    """One line, status 2, on one rank and on several."""
    ended = simulated(ranks, *setting("algorithm.name=allreduce", *keys))
    lines = [line for line in ended.err.splitlines() if "executing" not in line]
    assert ended.status == 2 and len(lines) == 1 and words in lines[0], ended.err


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (("data.import=data.py:regression", "model.import=net.py:build"), "model.loss names a loss"),
        (("data.import=data.py:returns", "data.options={what='classes'}", "model.import=net.py:build"), "data.classes"),
        (("data.import=data.py:returns", "data.options={what='classes'}", "model.preset=digits-cnn"), "data.classes"),
        (("data.import=data.py:words", "model.preset=digits-cnn"), "a network of layers classifies samples of numbers"),
        (("data.classes=3",), "data.classes: belongs to data.import"),
        (("data.options={n=3}",), "data.options: belongs to data.import"),
        (("model.metric=net.py:absolute",), "model.metric: belongs to model.import"),
    ],
)
def test_keys_that_do_not_fit(simulated: Callable[..., Any], folder: Path, keys: tuple[str, ...], words: str) -> None:
    ended = simulated(1, *setting("algorithm.name=sgd", of=keys))
    assert ended.status == 2 and words in ended.err and ended.err.count("\n") == 1, ended.err
