"""check: names every bad shard."""

import re
from pathlib import Path

import numpy as np
import pytest

from mpitrain.data.check import Figures, check, lines_of_classes
from mpitrain.data.shards import set_attributes, write_shard
from mpitrain.errors import BadInput


def _write(folder: Path) -> list[Path]:
    paths = [folder / f"train-{number:05d}-of-00003.h5" for number in range(3)]
    for path in paths:
        images = np.arange(80, dtype=np.uint8).reshape(5, 4, 4, 1)
        write_shard(path, "images", {"images": images, "targets": np.zeros(5, np.int32)}, {"classes": 2})
    return paths


def test_a_sound_folder(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    _write(tmp_path)
    check(tmp_path)
    shown = capsys.readouterr().out
    assert "3 of 3" in shown and "15" in shown and "4 x 4 x 1" in shown


def test_a_training_part_that_cannot_be_normalised(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """A line warns of it, and none once it has a mean and a deviation."""
    paths = _write(tmp_path)
    check(tmp_path)
    assert "warning: train: the shards have no mean and standard_deviation" in capsys.readouterr().out
    for path in paths:
        set_attributes(path, {"mean": 1.0, "standard_deviation": 2.0})
    check(tmp_path)
    assert "standard_deviation" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("names", "said"), [("big dog", "big: 5, dog: 0"), ("big dog cat", "0: 5, 1: 0"), ("big", "big: 5, 1: 0")]
)
def test_names_of_classes(tmp_path: Path, names: str, said: str, capsys: pytest.CaptureFixture) -> None:
    """More than there are classes, as where a name has a blank, name none of them."""
    for path in _write(tmp_path)[:1]:
        set_attributes(path, {"class_names": names})
        path.rename(tmp_path / "test-00000-of-00001.h5")
    with pytest.raises(BadInput, match="missing"):
        check(tmp_path)
    assert f"test, samples by class: {said}\n" in capsys.readouterr().out


def test_classes_without_samples_are_named_where_most_have_none() -> None:
    """The median is that of the others."""
    few = Figures(11, 0, "2", 5, np.array([8, 2, 1]), [], True)
    said = [*lines_of_classes("train", [few])]
    assert said[0] == "train, samples by class: 0: 8, 1: 2, 2: 1, 3: 0, 4: 0"
    assert said[1:] == [
        "warning: train: less than a quarter of the median of 2 samples a class that has any: 3: 0, 4: 0"
    ]


@pytest.mark.parametrize(("part", "counts", "warned"), [("train", [5], 1), ("test", [5], 0), ("train", [5, 2], 0)])
def test_one_class_to_train_on_is_warned_of(part: str, counts: list[int], warned: int) -> None:
    said = [*lines_of_classes(part, [Figures(sum(counts), 0, "2", len(counts), np.array(counts), [], True)])]
    assert said[1:] == ["warning: train: all samples are of one class; there is nothing to learn"] * warned


def test_files_that_nobody_reads_are_named(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    for path in _write(tmp_path):
        (tmp_path / path.name.replace("train", "val")).write_bytes(path.read_bytes())
    check(tmp_path)
    shown = capsys.readouterr().out
    assert "warning: val-00002-of-00003.h5 is not read" in shown and "warning: train-0" not in shown


def test_all_bad_shards_are_listed_and_the_first_is_raised(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    paths = _write(tmp_path)
    paths[0].write_bytes(paths[0].read_bytes()[:-100])
    paths[2].unlink()
    with pytest.raises(BadInput, match=paths[0].name):
        check(tmp_path)
    shown = capsys.readouterr().out
    assert "1 of 3" in shown and paths[0].name in shown and f"{paths[2].name}: missing" in shown


def test_an_utterance_that_is_in_two_shards_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Of one part; test sets of the same utterances may have the same keys."""
    for part, keys in (("train", ["a b", "c b"]), ("test-clean", ["a b"]), ("test-noisy", ["b a"])):
        for number, own in enumerate(keys):
            arrays = {
                "features": np.zeros((2, 3), np.float32),
                "targets": np.zeros(2, np.int32),
                "utterances": np.arange(3),
                "keys": np.array(own.split(), "S1"),
            }
            write_shard(tmp_path / f"{part}-{number:05d}-of-{len(keys):05d}.h5", "frames", arrays, {"classes": 2})
    line = "train-00001-of-00002.h5: 1 of its 2 utterances are in other shards, such as b in train-00000-of-00002.h5"
    with pytest.raises(BadInput, match=re.escape(line)):
        check(tmp_path)
    shown = capsys.readouterr().out
    assert shown.count("bad ") == 1 and "every checksum" not in shown
