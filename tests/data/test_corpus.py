"""Corpora: windows at the edges of utterances, normalisation, and parts that stay on disk."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpitrain.data.augmentation import Augmentation
from mpitrain.data.corpus import Corpus
from mpitrain.data.shards import write_shard
from mpitrain.errors import BadInput
from mpitrain.sampling.batch import Batch


def _write_frames(folder: Path) -> None:
    """Two shards of one feature, equal to the frame's number: utterances 0-3 and 4-5, then 6 and 7-9."""
    for number, (first, offsets) in enumerate([(0, [0, 4, 6]), (6, [0, 1, 4])]):
        values = np.arange(first, first + offsets[-1])
        arrays = {
            "features": values[:, None].astype(np.float32),
            "targets": (values % 3).astype(np.int32),
            "utterances": np.array(offsets, np.int64),
        }
        write_shard(folder / f"train-{number:05d}-of-00002.h5", "frames", arrays, {"classes": 3})


def _batch(corpus: Corpus, indices: list[int], dtype: str = "float32") -> Batch:
    batch = Batch(np.empty((len(indices), *corpus.shape), dtype), np.empty(len(indices), np.int32))
    return corpus.gather(np.array(indices, np.int64), batch)


@pytest.mark.parametrize("memory_limit", [1e9, 0])
def test_windows_repeat_the_edge_frames_of_their_utterance(tmp_path: Path, memory_limit: float) -> None:
    _write_frames(tmp_path)
    corpus = Corpus(tmp_path, "train", context=(2, 1), memory_limit=memory_limit)
    assert (corpus.samples, corpus.shape, corpus.classes, corpus.kind) == (10, (4, 1), 3, "frames")
    assert corpus.in_memory == bool(memory_limit)
    batch = _batch(corpus, [9, 0, 3, 4, 6, 7])
    assert batch.inputs[..., 0].tolist() == [
        [7, 8, 9, 9],
        [0, 0, 0, 1],
        [1, 2, 3, 3],
        [4, 4, 4, 5],
        [6, 6, 6, 6],
        [7, 7, 7, 8],
    ]
    assert batch.targets.tolist() == [0, 0, 0, 1, 0, 1]


@settings(max_examples=30)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.integers(0, 4), st.integers(0, 4))
def test_disk_and_memory_give_the_same(
    tmp_path_factory: pytest.TempPathFactory, indices: list[int], left: int, right: int
) -> None:
    folder = tmp_path_factory.mktemp("corpus")
    _write_frames(folder)
    memory, disk = (Corpus(folder, "train", context=(left, right), memory_limit=limit) for limit in (1e9, 0))
    both = Corpus(folder, "train", context=(left, right), memory_limit=memory.held_bytes - 1, hold=False)
    both.hold(partly=True)
    assert 0 < both.held_bytes < memory.held_bytes and not both.in_memory and not disk.held_bytes
    for one, other, third in zip(*(_batch(each, indices) for each in (memory, disk, both)), strict=True):
        assert np.array_equal(one, other) and np.array_equal(one, third)


@pytest.mark.parametrize("memory_limit", [1e9, 0])
def test_features_are_normalised(tmp_path: Path, memory_limit: float) -> None:
    arrays = {
        "features": np.array([[1, 10], [3, 20]], np.float32),
        "targets": np.zeros(2, np.int32),
        "utterances": np.array([0, 2]),
    }
    attributes = {"classes": 1, "mean": np.float32([2, 10]), "standard_deviation": np.float32([0.5, 5])}
    write_shard(tmp_path / "dev-00000-of-00001.h5", "frames", arrays, attributes)
    corpus = Corpus(tmp_path, "dev", memory_limit=memory_limit)
    assert _batch(corpus, [1, 0]).inputs[:, 0].tolist() == [[2, 2], [-2, 0]]


@pytest.mark.parametrize("memory_limit", [1e9, 0])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_images_are_normalised_per_channel(tmp_path: Path, dtype: str, memory_limit: float) -> None:
    images = np.arange(2 * 3 * 4 * 2, dtype=np.uint8).reshape(2, 3, 4, 2)
    attributes = {"classes": 2, "mean": np.float32([1, 3]), "standard_deviation": np.float32([2, 4])}
    arrays = {"images": images, "targets": np.array([1, 0], np.int32)}
    write_shard(tmp_path / "test-00000-of-00001.h5", "images", arrays, attributes)
    batch = _batch(Corpus(tmp_path, "test", dtype=dtype, memory_limit=memory_limit), [1, 0, 1], dtype)
    assert batch.inputs.shape == (3, 3, 4, 2) and batch.inputs.dtype == dtype
    assert np.array_equal(batch.inputs, (images[[1, 0, 1]] - np.array([1.0, 3.0])) / np.array([2.0, 4.0]))
    assert batch.targets.tolist() == [0, 1, 0]


def test_threads_gather_the_same_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two shards, with mirrored crops and shifted colours."""
    monkeypatch.setattr("mpitrain.data.images.SHARE", 1000)
    rng = np.random.default_rng(0)
    covariance = np.eye(3) * 100.0
    for shard in range(2):
        arrays = {"images": rng.integers(0, 256, (40, 12, 10, 3), dtype=np.uint8), "targets": np.zeros(40, np.int32)}
        known = {
            "classes": 1,
            "mean": np.full(3, 99.0),
            "standard_deviation": np.full(3, 50.0),
            "covariance": covariance,
        }
        write_shard(tmp_path / f"train-0000{shard}-of-00002.h5", "images", arrays, known)
    augmentation = Augmentation(crop=9, flip=True, colour_shift=0.1, seed=5)
    indices = rng.permutation(80)[:61]
    alone, together = (
        corpus.gather(indices, corpus.form.room(61, np.float32), (3, 17)).inputs
        for corpus in (Corpus(tmp_path, "train", augmentation=augmentation, threads=n) for n in (1, 5))
    )
    np.testing.assert_array_equal(together, alone)
    assert len(np.unique(alone)) > 1000


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    _write_frames(tmp_path)
    (tmp_path / "train-00000-of-00002.h5").unlink()
    with pytest.raises(BadInput, match=r"train-00000-of-00002\.h5: missing"):
        Corpus(tmp_path, "train")


def test_damage_on_disk_is_named_when_it_is_read(tmp_path: Path) -> None:
    arrays = {
        "features": np.random.default_rng(0).normal(size=(5000, 40)).astype(np.float32),
        "targets": np.zeros(5000, np.int32),
        "utterances": np.array([0, 5000]),
    }
    path = tmp_path / "train-00000-of-00001.h5"
    write_shard(path, "frames", arrays, {"classes": 1})
    spoilt = bytearray(path.read_bytes())
    spoilt[spoilt.index(arrays["features"][4000].tobytes())] ^= 1
    path.write_bytes(spoilt)
    corpus = Corpus(tmp_path, "train", memory_limit=0)
    assert np.array_equal(_batch(corpus, [5]).inputs[0], arrays["features"][5:6])
    with pytest.raises(BadInput, match=r"train-00000-of-00001\.h5.*checksum"):
        _batch(corpus, [4000])
    with pytest.raises(BadInput, match=r"train-00000-of-00001\.h5.*checksum"):
        Corpus(tmp_path, "train")


def test_unlike_shards_are_named(tmp_path: Path) -> None:
    _write_frames(tmp_path)
    arrays = {
        "features": np.zeros((1, 2), np.float32),
        "targets": np.zeros(1, np.int32),
        "utterances": np.array([0, 1]),
    }
    write_shard(tmp_path / "train-00001-of-00002.h5", "frames", arrays, {"classes": 3})
    with pytest.raises(BadInput, match=r"train-00001-of-00002\.h5"):
        Corpus(tmp_path, "train")


def test_wrong_part_and_index(tmp_path: Path) -> None:
    _write_frames(tmp_path)
    with pytest.raises(BadInput, match="no part dev, only train"):
        Corpus(tmp_path, "dev")
    with pytest.raises(IndexError):
        _batch(Corpus(tmp_path, "train"), [10])
