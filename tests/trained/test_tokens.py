"""Networks of tokens through whole trainings: every algorithm, the run folder, and what is done with it."""

import json
from collections.abc import Callable
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpitrain
from mpitrain.__main__ import main
from mpitrain.algorithms import ALGORITHMS
from mpitrain.data.corpus import Corpus
from mpitrain.data.sampler import epoch_indices

torch = pytest.importorskip("torch", reason="needs PyTorch (the extra mpitrain[torch])")
# without PyTorch, "torch" may be a folder of benchmarks
functional = pytest.importorskip("torch.nn.functional", reason="needs PyTorch (the extra mpitrain[torch])")

NET = """
from torch import nn
from torch.nn import functional

def build(input_shape, classes):
    assert len(input_shape) == 1 and classes == 256, (input_shape, classes)
    return nn.Sequential(nn.Embedding(classes, 24), nn.Linear(24, classes))

def pooled(input_shape, classes):
    return nn.Sequential(nn.Embedding(classes, 24), nn.Flatten(), nn.Linear(24 * 16, classes))

def smoothed(outputs, targets):
    assert outputs.shape == (*targets.shape, 256) and targets.dtype.is_floating_point is False
    return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten(), label_smoothing=0.1)
"""
KEYS = ("data.path=shards", "data.window=16", "model.import=net.py:build", "run.progress=none", "run.threads=1")


def setting(*keys: str) -> list[str]:
    return [word for key in (*KEYS, *keys) for word in ("--set", key)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a network, and shards of a text in which each letter tells the next one."""
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NET)
    Path("text").write_text("abcdefghijklmnop\n" * 1500)
    assert main(["prepare", "text", "text", "shards"]) == 0
    return tmp_path


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "hybrid"])
def test_every_algorithm(simulated: Callable[..., Any], folder: Path, name: str) -> None:
    """The bits of a byte are the loss in another unit; a run folder gives the summary's figures."""
    keys = setting(f"algorithm.name={name}", "training.epochs=3", "training.minibatch=8")
    if name not in ("sparse-delta", "admm"):
        keys += ["--set", "training.learning_rate=0.5"]
    ended = simulated(1 if name in ("sgd", "msgd", "averaged", "moving-average") else 3, *keys, "--out", "run")
    assert ended.status == 0, ended.err
    told = json.loads(Path("run/summary.json").read_text())
    assert told["samples"] == 3 * (22966 // 16) and told["test_loss"] < 5.2
    assert told["test_bits_per_byte"] == pytest.approx(told["test_loss"] / log(2))
    loaded = mpitrain.load("run")
    corpus = Corpus(Path("shards"), "test", window=16)
    batch = corpus.gather(np.arange(corpus.samples), corpus.form.room(corpus.samples, np.float32))
    with torch.no_grad():
        outputs = loaded.module()(torch.from_numpy(batch.inputs).long()).flatten(0, 1)
    targets = torch.from_numpy(batch.targets).long().flatten()
    assert functional.cross_entropy(outputs, targets).item() == pytest.approx(told["test_loss"], rel=1e-4)
    wrong = (outputs.argmax(1) != targets).float().mean().item()
    assert wrong == pytest.approx(told["test_error"], abs=1e-6)


def test_sgd_is_pytorchs(simulated: Callable[..., Any], folder: Path) -> None:
    """Minibatch by minibatch, in float64."""
    keys = setting("training.dtype=float64", "training.learning_rate=0.3", "training.minibatch=10", "training.seed=4")
    for run, epochs in (("run", "1"), ("start", "0.01")):
        own = setting(f"training.epochs={epochs}", *(["training.learning_rate=1e-300"] if run == "start" else []))
        ended = simulated(1, *keys, *own, "--set", "algorithm.name=sgd", "--out", run)
        assert ended.status == 0, ended.err
    ours, theirs = (mpitrain.load(run).module().double() for run in ("run", "start"))
    corpus = Corpus(Path("shards"), "train", window=16)
    optimizer, order = torch.optim.SGD(theirs.parameters(), lr=0.3), epoch_indices(4, 0, corpus.samples)
    for start in range(0, corpus.samples, 10):
        which = np.ascontiguousarray(order[start : start + 10])
        inputs, targets = map(torch.from_numpy, corpus.gather(which, corpus.form.room(len(which), np.float64)))
        optimizer.zero_grad()
        functional.cross_entropy(theirs(inputs.long()).flatten(0, 1), targets.long().flatten()).backward()
        optimizer.step()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        np.testing.assert_allclose(one.detach().numpy(), other.detach().numpy(), rtol=1e-9, atol=1e-12)


def test_commands(
    simulated: Callable[..., Any], folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A loss of one's own, which is in no bits, a resume on other ranks, evaluate, report; and what needs one row of
    outputs a sample."""
    keys = setting("algorithm.name=allreduce", "training.learning_rate=0.5", "model.loss=net.py:smoothed")
    assert simulated(2, *keys, "--out", "run").status == 0
    ended = simulated(3, "--resume", "run", "--set", "training.epochs=10", "--set", "run.progress=plain")
    assert ended.status == 0 and "test error" in ended.out, ended.err + ended.out
    ended = simulated(3, "--resume", "run", "--set", "data.window=8", "--set", "training.epochs=12")
    assert ended.status == 2 and "data.window = 8, the network was trained on 16" in ended.err
    capsys.readouterr()
    assert main(["evaluate", "run", "shards"]) == 0 and "bits a byte" not in capsys.readouterr().out
    assert main(["report", "run", "--out", "page.html"]) == 0 and "Test error" in Path("page.html").read_text()
    assert main(["export", "run", "--format", "npz"]) == 0
    for command in (["predict", "run", "shards", "out.npz"], ["export", "run", "--format", "onnx"]):
        assert main(command) == 2 and "tokens have a row of outputs each" in capsys.readouterr().err
    assert simulated(3, *setting("model.import=net.py:pooled")).err.count("not [2, 16, 256] (classes)") == 1
    assert "model.output = 'logistic': not of tokens" in simulated(3, *setting("model.output=logistic")).err
