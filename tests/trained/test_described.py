"""The classes' names and the preparation go with the data, the run and what is made of it; others are refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import kaldiio
import numpy as np
import pytest

from mpitrain.data import origin
from mpitrain.data.corpus import Corpus
from mpitrain.data.shards import set_attributes
from mpitrain.errors import BadInput
from mpitrain.files import CHECKSUM, sealed_json

from .conftest import make_frames, make_images, make_run

FRAMES = ("model.preset=strom2015-dnn", "model.width=0.01", "data.context=[3,2]", "data.path=own")
NAMES, HOW = "sil a b ü", {"cmvn": "none", "bins": 6, "sample_rate": 16000}


def describe(folder: Path, **attributes: Any) -> None:
    """Give all shards of a folder these attributes."""
    for path in folder.glob("*.h5"):
        set_attributes(path, attributes)


def preparation(**changes: Any) -> str:
    return json.dumps({**HOW, **changes})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With `own`, frames with names and preparation, `run`, trained on them, and `other`, the same without either."""
    monkeypatch.chdir(tmp_path)
    make_frames(tmp_path / "own")
    shutil.copytree(tmp_path / "own", tmp_path / "other")
    describe(tmp_path / "own", class_names=NAMES, preparation=preparation())
    make_run(tmp_path / "run", *FRAMES)
    return tmp_path


OTHERS = {
    "names": ({"class_names": "sil a c ü"}, "class 2 is called c, the network was trained on b"),
    "cmvn": ({"preparation": preparation(cmvn="speaker")}, "cmvn = speaker, the network was trained on none"),
    "rate": ({"preparation": preparation(sample_rate=8000)}, "sample_rate = 8000, the network was trained on 16000"),
}


@pytest.mark.parametrize("attributes, words", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("command", ["evaluate run other", "predict run other p.h5", "export run --format onnx --data"])
def test_other_names_and_preparations_are_refused(
    alone: Callable[..., Any], folder: Path, attributes: dict[str, Any], words: str, command: str
) -> None:
    describe(folder / "other", **attributes)
    ended = alone(*command.split(), *(["other"] if command.endswith("--data") else []))
    assert ended.status == 2 and ended.err == f"mpitrain: other: part test: {words}\n"
    assert not list(folder.glob("*p.h5"))


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"class_names": "sil a"},
        {"preparation": '{"deltas": true}'},
        {"preparation": "by hand"},
        {"class_names": ""},
    ],
)
def test_what_one_side_does_not_tell_is_not_compared(
    alone: Callable[..., Any], folder: Path, attributes: dict[str, Any]
) -> None:
    """Shards of other tools, numbers as classes, words of others; and a run folder that does not tell."""
    describe(folder / "other", **attributes)
    assert alone("evaluate", "run", "other").status == 0
    told = json.loads((folder / "run" / origin.NAME).read_text())
    old = {key: value for key, value in told.items() if key not in ("class_names", "preparation", CHECKSUM)}
    (folder / "run" / origin.NAME).write_text(sealed_json(old))
    describe(folder / "other", class_names="k l m n", preparation=preparation(cmvn="speaker"))
    assert alone("evaluate", "run", "other").status == 0
    assert alone("evaluate", "run", "own").status == 0


@pytest.mark.parametrize("changes", [{"class_names": "x y z u"}, {"preparation": preparation(cmvn="scp")}])
def test_shards_of_one_part_agree(folder: Path, changes: dict[str, str]) -> None:
    """As far as they tell; old ones among new ones are no fault."""
    path = folder / "own" / "train-00001-of-00002.h5"
    set_attributes(path, changes)
    with pytest.raises(BadInput, match=f"{path.name}: another {next(iter(changes))} than train-00000"):
        Corpus(folder / "own", "train")
    set_attributes(path, dict.fromkeys(changes))
    assert Corpus(folder / "own", "train").samples == 11


def test_exports_tell_names_and_preparation(alone: Callable[..., Any], folder: Path) -> None:
    onnx, safetensors = pytest.importorskip("onnx"), pytest.importorskip("safetensors")
    for form in ("npz", "safetensors", "onnx"):
        words = ["--no-check"] if form == "onnx" else []
        assert alone("export", "run", "--format", form, *words).status == 0
    with np.load(folder / "run" / "model.npz") as file:
        found = [json.loads(str(file["metadata"]))]
    with safetensors.safe_open(folder / "run" / "model.safetensors", "np") as file:
        found.append(file.metadata())
    found.append({prop.key: prop.value for prop in onnx.load(folder / "run" / "model.onnx").metadata_props})
    for metadata in found:
        assert json.loads(metadata["class_names"]) == NAMES.split()
        assert json.loads(metadata["preparation"]) == HOW


def test_predictions_name_their_columns(alone: Callable[..., Any], folder: Path) -> None:
    """Beside what was there before; where there are no names, just that."""
    for suffix in ("h5", "npz", "ark"):
        assert alone("predict", "run", "other", f"p.{suffix}").status == 0
    with h5py.File(folder / "p.h5") as file:
        assert [name.decode() for name in file["class_names"]] == NAMES.split()
        assert set(file) == {"posteriors", "targets", "utterances", "keys", "class_names"}
    with np.load(folder / "p.npz") as arrays:
        assert arrays["class_names"].tolist() == NAMES.split()
    assert (folder / "p.classes").read_text(encoding="utf-8") == "sil 0\na 1\nb 2\nü 3\n"
    assert len(kaldiio.load_scp(str(folder / "p.scp"))) == 3
    make_images(folder / "images", (8, 8, 1))
    make_run(folder / "plain", "data.path=images")
    for suffix in ("h5", "ark"):
        assert alone("predict", "plain", "images", f"q.{suffix}").status == 0
    with h5py.File(folder / "q.h5") as file:
        assert "class_names" not in file
    assert not (folder / "q.classes").exists()


def test_pictures_of_other_classes_are_refused(alone: Callable[..., Any], tmp_path: Path) -> None:
    """Folders A to D against K to N: the same number of classes, none of them the same."""
    image = pytest.importorskip("PIL.Image")
    for name, letters in (("own", "ABCD"), ("other", "KLMN")):
        for letter in letters:
            for part in ("train", "test"):
                place = tmp_path / f"{name}-pictures" / part / letter
                place.mkdir(parents=True)
                image.fromarray(np.full((8, 8), ord(letter), np.uint8)).save(place / "1.png")
        assert alone("prepare", "images", "--grey", "--jobs", "1", f"{name}-pictures", name).status == 0
    settings = ("--set", "data.path=own", "--set", "training.epochs=1", "--set", "training.minibatch=2")
    assert alone("train", *settings, "--out", "run").status == 0
    told = json.loads((tmp_path / "run" / origin.NAME).read_text())
    assert told["class_names"] == ["A", "B", "C", "D"]
    before = {path: path.read_bytes() for path in (tmp_path / "run").glob("*.*")}
    words = "part {}: class 0 is called K, the network was trained on A\n"
    assert alone("evaluate", "run", "other").err == f"mpitrain: other: {words.format('test')}"
    ended = alone("train", "--resume", "run", "--set", "data.path=other", "--set", "training.epochs=2")
    assert ended.status == 2 and ended.err == f"mpitrain: other: {words.format('train')}"
    ended = alone("train", "--resume", "run", "--set", "data.normalise=none", "--set", "training.epochs=2")
    assert ended.status == 2
    assert ended.err == "mpitrain: own: part train: data.normalise = none, the network was trained on corpus\n"
    assert {path: path.read_bytes() for path in before} == before
    describe(tmp_path / "own", class_names=None)
    assert alone("train", "--resume", "run", "--set", "training.epochs=2").status == 0
    assert json.loads((tmp_path / "run" / origin.NAME).read_text())["class_names"] == ["A", "B", "C", "D"]


def test_a_resume_reads_the_same_window(alone: Callable[..., Any], folder: Path) -> None:
    settings = [word for setting in (*FRAMES, "training.epochs=1") for word in ("--set", setting)]
    assert alone("train", *settings, "--out", "windows").status == 0
    ended = alone("train", "--resume", "windows", "--set", "data.context=[2,3]", "--set", "training.epochs=2")
    assert ended.status == 2
    assert ended.err == "mpitrain: own: part train: data.context = [2, 3], the network was trained on [3, 2]\n"
    describe(folder / "own", preparation=preparation(bins=7))
    ended = alone("train", "--resume", "windows", "--set", "training.epochs=2")
    assert ended.status == 2 and "bins = 7, the network was trained on 6" in ended.err
