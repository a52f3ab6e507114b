"""`evaluate`, `predict` and `export` as their users start them."""

import hashlib
import json
import math
import sys
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from signal import SIGINT
from typing import Any

import h5py
import kaldiio
import numpy as np
import pytest

from mpitrain.data.digits import prepare_digits
from mpitrain.sampling.batch import Batch
from mpitrain.trained.model import load
from mpitrain.trained.posteriors import log_softmax
from tests.faults import Fault, program

from .conftest import make_frames, make_run

FRAMES = ("model.preset=strom2015-dnn", "model.width=0.01", "data.context=[3,2]", "data.path=data")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With `data`, frames of which 600 are to test, and `run`, trained on them."""
    monkeypatch.chdir(tmp_path)
    make_frames(tmp_path / "data", lengths=(7, 1, 592))
    make_run(tmp_path / "run", *FRAMES)
    return tmp_path


@pytest.mark.parametrize("name", ["easgd", "averaged", "hybrid", "sparse-delta"])
def test_a_trained_run_evaluates_to_what_its_summary_says(
    launch: Callable[..., Any], alone: Callable[..., Any], tmp_path: Path, name: str
) -> None:
    """Also of an algorithm whose ranks had parts of the weights, whose weights had a unit, or that averages."""
    settings = (f"algorithm.name={name}", "training.epochs=1", "training.minibatch=128", "run.evaluate_every=0.5")
    options = [word for setting in settings for word in ("--set", setting)]
    assert launch(2, *options, "--out", "run", deadline=300).status == 0
    told = json.loads((tmp_path / "run" / "summary.json").read_text())
    ended = alone("evaluate", "run", "--json")
    assert ended.status == 0, ended.err
    found = json.loads(ended.out)
    assert found["parameters_sha256"] == told["parameters_sha256"]
    assert found["test_error"] == told["test_error"] and found["samples"] == {"test": 359}
    assert found["test_loss"] == pytest.approx(told["test_loss"], rel=1e-5)
    best = json.loads(alone("evaluate", "run", "--json", "--checkpoint", "best").out)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert best["test_error"] == min(
        record["test_error"] for line in lines if "test_error" in (record := json.loads(line))
    )


def test_a_rank_that_is_interrupted_ends_the_evaluation_of_all(launch: Callable[..., Any], folder: Path) -> None:
    """They would wait for it, for the run's deadline."""
    faulty = program(Fault("mpitrain.monitoring.evaluation.Evaluation.run", [f"lose {int(SIGINT)}"], 1))
    ended = launch(2, "evaluate", "run", program=faulty, deadline=100)
    assert ended.status == 130
    assert [line for line in ended.err.splitlines() if "mpitrain" in line] == ["mpitrain: interrupted"]


def test_ranks_share_an_evaluation(launch: Callable[..., Any], alone: Callable[..., Any], folder: Path) -> None:
    """More of them than samples too; and the table says what the numbers are."""
    make_frames(folder / "small", lengths=(1, 1, 1))
    model = load(folder / "run")
    corpus = model.open(folder / "data", "test")
    batch = Batch(np.empty((corpus.samples, *corpus.shape), np.float32), np.empty(corpus.samples, np.int32))
    corpus.gather(np.arange(corpus.samples), batch)
    loss, wrong = model.network.evaluate(model.parameters, batch)
    command = ("evaluate", "run", "data", "--json", "--part", "test")
    for ended in (alone(*command), launch(3, *command)):
        found = json.loads(ended.out)
        assert found["test_error"] == wrong / 600
        assert found["test_loss"] == pytest.approx(loss / 600, rel=1e-6)
    ended = launch(5, "evaluate", "run", "small", "--part", "test", "--part", "train")
    lines = ended.out.splitlines()
    assert ended.status == 0 and [line.split()[:2] for line in lines[2:]] == [["test", "3"], ["train", "3"]]


def test_any_number_of_ranks_predicts_the_same(
    launch: Callable[..., Any], alone: Callable[..., Any], folder: Path
) -> None:
    """But for rounding, in every format; and to 1e-5 what the definition says."""
    close = partial(np.testing.assert_allclose, atol=1e-6, rtol=0)
    for suffix in ("h5", "npz", "ark"):
        options = ("--output", "log-likelihoods")
        ended = alone("predict", "run", "data", f"p1.{suffix}", *options)
        assert ended.status == 0 and f"p1.{suffix}: log-likelihoods of 600 samples" in ended.out
        assert launch(3, "predict", "run", "data", f"p3.{suffix}", *options).status == 0
    with h5py.File(folder / "p3.h5") as file:
        rows, offsets, keys = file["log_likelihoods"][:], file["utterances"][:], [k.decode() for k in file["keys"]]
        np.testing.assert_array_equal(file["targets"], load(folder / "run").open(folder / "data", "test").targets)
    with h5py.File(folder / "p1.h5") as file:
        close(file["log_likelihoods"], rows)
    for ranks in (1, 3):
        close(np.load(folder / f"p{ranks}.npz")["log_likelihoods"], rows)
        found = kaldiio.load_scp(str(folder / f"p{ranks}.scp"))
        assert list(found) == keys == ["zoë-1", "ann-2", "bob-3"]
        close(np.concatenate([found[key] for key in keys]), rows)
        assert [len(found[key]) for key in keys] == np.diff(offsets).tolist() == [7, 1, 592]
    np.testing.assert_allclose(rows, likelihoods(folder), atol=1e-5, rtol=0)


def likelihoods(folder: Path) -> np.ndarray:
    """From the shards, windows cut and normalised by the definition; one is added to each class's count."""
    with h5py.File(folder / "data" / "test-00000-of-00001.h5") as file:
        x = (file["features"][:] - file.attrs["mean"]) / file.attrs["standard_deviation"]
        offsets = file["utterances"][:]
    model = load(folder / "run")
    windows = np.empty((len(x), 6, x.shape[1]), np.float32)
    for first, end in pairwise(offsets):
        for t in range(first, end):
            windows[t] = x[np.clip(np.arange(t - 3, t + 3), first, end - 1)]
    z = model.network.outputs(model.parameters, windows).astype(np.float64)
    counts = np.zeros(4)
    for path in (folder / "data").glob("train-*.h5"):
        with h5py.File(path) as file:
            counts += np.bincount(file["targets"][:], minlength=4)
    priors = (counts + 1) / (counts + 1).sum()
    return np.asarray(log_softmax(z) - np.log(priors))


def test_posteriors_of_images_in_an_ark(alone: Callable[..., Any], tmp_path: Path) -> None:
    """One row for each image, under numbers, rows that sum to 1."""
    make_run(tmp_path / "run")
    assert alone("prepare", "digits", "digits").status == 0
    assert alone("predict", "run", "digits", "out/p.ark").status == 0
    found = kaldiio.load_scp(str(tmp_path / "out" / "p.scp"))
    assert len(found) == 359 and "test-0000358" in found
    assert found["test-0000358"].shape == (1, 10) and found["test-0000358"].sum() == pytest.approx(1, abs=1e-5)


def test_priors_from_a_file(alone: Callable[..., Any], folder: Path) -> None:
    """Their logarithms are what log-posteriors and log-likelihoods differ by."""
    (folder / "counts").write_text("[ 10 20 30 40 ]\n")
    assert alone("predict", "run", "data", "a.npz", "--output", "log-posteriors").status == 0
    options = ("--output", "log-likelihoods", "--priors", "counts")
    assert alone("predict", "run", "data", "b.npz", *options).status == 0
    difference = np.load(folder / "a.npz")["log_posteriors"] - np.load(folder / "b.npz")["log_likelihoods"]
    np.testing.assert_allclose(difference, np.broadcast_to(np.log([0.1, 0.2, 0.3, 0.4]), (600, 4)), atol=1e-5)


def damage(path: Path) -> None:
    """Flip a bit of the last frames: found when they are read, not before."""
    with h5py.File(path) as file:
        dataset = file["features"]
        chunk = dataset.id.get_chunk_info(dataset.id.get_num_chunks() - 1)
    content = bytearray(path.read_bytes())
    content[chunk.byte_offset + chunk.size // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_damaged_shard_ends_a_prediction_without_a_file(launch: Callable[..., Any], folder: Path, ranks: int) -> None:
    """Named in one line by one rank; the damage is in the last piece, which on three ranks is the last one's."""
    damage(folder / "data" / "test-00000-of-00001.h5")
    ended = launch(ranks, "predict", "run", "data", "p.h5", deadline=60)
    ours = [line for line in ended.err.splitlines() if line.startswith("mpitrain: ")]
    assert ended.status == 2 and len(ours) == 1 and "test-00000-of-00001.h5" in ours[0], ended.err
    assert "Traceback" not in ended.err and not list(folder.glob("*p.h5"))


def test_npz_and_safetensors_hold_the_parameters(alone: Callable[..., Any], folder: Path) -> None:
    """By name; one after another they have the hash of the summary."""
    from safetensors import safe_open

    model = load(folder / "run")
    assert alone("export", "run", "--format", "npz", "--no-check").status == 0
    for name in ("npz", "safetensors"):
        ended = alone("export", "run", "--format", name)
        assert ended.status == 0 and f"run/model.{name}: checkpoint 000000000100" in ended.out
    order = [parameter.name for parameter in model.network.layout.parameters]
    with np.load(folder / "run" / "model.npz", allow_pickle=False) as file:
        told = json.loads(str(file["metadata"]))
        arrays = {name: file[name] for name in order}
    with safe_open(folder / "run" / "model.safetensors", "np") as file:
        assert file.metadata() == told
        for name, array in arrays.items():
            np.testing.assert_array_equal(file.get_tensor(name), array)
    together = b"".join(array.astype("<f4").tobytes() for array in arrays.values())
    assert hashlib.sha256(together).hexdigest() == told["parameters_sha256"] == model.sha256
    assert arrays["fc1.weights"].shape == (36, 15) and math.prod(json.loads(told["input_shape"])) == 36


def test_onnx_is_written_and_checked(alone: Callable[..., Any], folder: Path) -> None:
    ended = alone("export", "run", "--format", "onnx", "--out", "deep/m.onnx", "--output", "log-likelihoods")
    assert ended.status == 0 and "on 600 samples of test" in ended.out, ended.err
    ended = alone("export", "run", "--format", "onnx", "--no-check")
    assert ended.status == 0 and "not checked" in ended.out
    (folder / "data").rename(folder / "gone")
    ended = alone("export", "run", "--format", "onnx")
    assert ended.status == 0 and "not checked: data: no such folder" in ended.out
    assert alone("export", "run", "--format", "onnx", "--check").status == 2
    assert "--opset 0: from 13 to" in alone("export", "run", "--format", "onnx", "--opset", "0").err
    assert alone("export", "run", "--format", "onnx", "--data", "gone").status == 0


BAD: dict[str, tuple[str, str]] = {
    "no run": ("evaluate nowhere", "nowhere: no such run folder"),
    "a folder that is no run": ("predict data data p.h5", "data: not a run folder"),
    "no checkpoint": ("evaluate empty data", "checkpoints: no whole checkpoint"),
    "no such checkpoint": ("evaluate run data --checkpoint 7", "7: no such checkpoint; there: 000000000100"),
    "other features": ("evaluate run wide", "wide: part test has 7 features, the network was trained on 6"),
    "other classes": ("predict run many p.h5", "many: part test has 5 classes, the network was trained on 4"),
    "other kind": ("evaluate run digits", "digits: part test holds images, the network was trained on frames"),
    "no such part": ("evaluate run data --part dev", "data: has no part dev, only train, test"),
    "no such data": ("predict run none p.h5", "none: no such folder"),
    "unknown ending": ("predict run data p.csv", "p.csv: ends in none of .h5"),
    "priors for posteriors": ("predict run data p.h5 --smoothing 1", "only for --output log-likelihoods"),
    "smoothing below 0": (
        "predict run data p.h5 --output log-likelihoods --smoothing -1",
        "--smoothing -1.0: at least",
    ),
    "priors of others": ("predict run data p.h5 --output log-likelihoods --priors two", "two: expected 4 numbers"),
    "unknown format": ("export run --format tflite", "--format tflite: unknown; known: safetensors, onnx, npz"),
    "opset of npz": ("export run --format npz --opset 17", "--opset: only for --format onnx"),
    "values of npz": ("export run --format npz --output log-posteriors", "--output log-posteriors: only for"),
    "a shard of the data": ("predict run data data/test-00000-of-00001.h5", "of-00001.h5: is a shard of the data that"),
    "folder as a file": ("export run --format npz --out data", "data: is a folder"),
}


def test_bad_input_is_one_line_and_status_2(alone: Callable[..., Any], folder: Path) -> None:
    """What is on disk stays as it was."""
    make_frames(folder / "wide", dims=7)
    make_frames(folder / "many", classes=5)
    prepare_digits(folder / "digits")
    make_run(folder / "empty", *FRAMES)
    for path in (folder / "empty" / "checkpoints").glob("*/manifest.json"):
        path.unlink()
    (folder / "two").write_text("1 2")
    before = sorted(folder.rglob("*"))
    for name, (command, words) in BAD.items():
        ended = alone(*command.split())
        lines = ended.err.splitlines()
        assert ended.status == 2 and len(lines) == 1, (name, ended)
        assert lines[0].startswith("mpitrain: ") and words in lines[0], (name, ended)
    assert sorted(folder.rglob("*")) == before


@pytest.mark.filterwarnings("error")
def test_a_model_that_diverged(alone: Callable[..., Any], folder: Path) -> None:
    """Weights so large that the outputs are not finite: no warnings of NumPy's, and no file of predictions."""
    layers = "model.layers=[{kind='fully-connected',units=4},{kind='relu'},{kind='fully-connected'}]"
    make_run(folder / "wild", layers, "data.path=data", factor=1e30)
    evaluated, told = alone("evaluate", "wild"), alone("evaluate", "wild", "--json")
    assert "nan" in evaluated.out and json.loads(told.out)["test_loss"] is None and evaluated.err == told.err == ""
    predicted = alone("predict", "wild", "data", "p.npz")
    said = "wild/checkpoints/000000000100: has no finite outputs for sample 0 of part test"
    assert predicted.status == 2 and predicted.err == f"mpitrain: {said}\n" and not (folder / "p.npz").exists()
    pytest.importorskip("onnxruntime")
    exported = alone("export", "wild", "--format", "onnx")
    assert exported.status == 1 and exported.err.count("\n") == 1 and "differs by nan" in exported.err


@pytest.mark.parametrize("command", ["evaluate nowhere data", "predict run nowhere p.h5"])
def test_bad_input_ends_all_ranks(launch: Callable[..., Any], folder: Path, command: str) -> None:
    ended = launch(3, *command.split(), deadline=60)
    ours = [line for line in ended.err.splitlines() if line.startswith("mpitrain: ")]
    assert ended.status == 2 and len(ours) == 1 and "nowhere" in ours[0] and "Traceback" not in ended.err


@pytest.mark.parametrize(
    ("library", "command"),
    [
        ("kaldiio", "predict run data p.ark"),
        ("safetensors", "export run --format safetensors"),
        ("onnx", "export run --format onnx"),
        ("onnxruntime", "export run --format onnx --check"),
    ],
)
def test_a_missing_library_is_named(
    alone: Callable[..., Any], folder: Path, monkeypatch: pytest.MonkeyPatch, library: str, command: str
) -> None:
    for name in {library, *(name for name in sys.modules if name.startswith(f"{library}."))}:
        monkeypatch.setitem(sys.modules, name, None)
    ended = alone(*command.split())
    assert ended.status == 2 and len(ended.err.splitlines()) == 1 and "pip install mpitrain[" in ended.err
    assert library in ended.err and not list(folder.glob("*p.ark")) and not list(folder.glob("run/model.*"))
