"""Shards: what is read is what was written, or one line names the file."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpitrain.data.corpus import Corpus
from mpitrain.data.shards import folder_parts, set_attributes, shard_name, write_shard
from mpitrain.errors import BadInput

from .alone import read_shard

NAME = shard_name("train", 0, 1)


def frames(lengths: list[int], dims: int = 3, classes: int = 5, seed: int = 0) -> dict[str, np.ndarray]:
    """Arrays of a frame shard with these utterances."""
    rng, count = np.random.default_rng(seed), sum(lengths)
    return {
        "features": rng.normal(size=(count, dims)).astype(np.float32),
        "targets": rng.integers(0, classes, count).astype(np.int32),
        "utterances": np.cumsum([0, *lengths], dtype=np.int64),
    }


def images(count: int, shape: tuple[int, int, int] = (2, 3, 1)) -> dict[str, np.ndarray]:
    """Arrays of an image shard."""
    rng = np.random.default_rng(1)
    pixels = rng.integers(0, 256, (count, *shape)).astype(np.uint8)
    return {"images": pixels, "targets": rng.integers(0, 5, count).astype(np.int32)}


@settings(max_examples=40)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=8),
    st.integers(1, 30),
    st.booleans(),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=30),
)
def test_round_trip(tmp_path_factory: Any, lengths: list[int], dims: int, whole: bool, source: str) -> None:
    path = tmp_path_factory.mktemp("shards") / NAME
    arrays, mean = frames(lengths, dims), np.linspace(-1, 1, dims, dtype=np.float32)
    if whole:  # so that gzip pays
        np.rint(arrays["features"], out=arrays["features"])
    attributes = {"classes": 5, "source": source, "mean": mean, "standard_deviation": mean + 2, "share": 0.1}
    write_shard(path, "frames", arrays, attributes)
    shard = read_shard(path)
    for name, array in arrays.items():
        assert shard.arrays[name].dtype == array.dtype and np.array_equal(shard.arrays[name], array)
    for name, value in attributes.items():
        assert np.array_equal(shard.attributes[name], value)
    assert shard.kind == "frames"


def test_the_same_content_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.h5", "b.h5"):
        write_shard(tmp_path / name, "images", images(50), {"classes": 5})
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


@pytest.mark.parametrize("kind", ["frames", "images"])
def test_a_flipped_bit_is_named_or_harmless(tmp_path: Path, kind: str) -> None:
    """Every fifth byte of the file, in HDF5's bookkeeping, attributes and data alike."""
    path = tmp_path / NAME
    arrays = frames([20, 30]) if kind == "frames" else images(40)
    write_shard(path, kind, arrays, {"classes": 5, "source": "test"})
    whole, seen = path.read_bytes(), 0
    reference = read_shard(path)
    for position in range(0, len(whole), 5):
        flipped = bytearray(whole)
        flipped[position] ^= 1 << position % 8
        path.write_bytes(flipped)
        try:
            shard = read_shard(path)
        except BadInput as error:
            seen += 1
            assert str(error).startswith(str(path)) and "\n" not in str(error)
        else:
            assert all(np.array_equal(shard.arrays[name], array) for name, array in arrays.items())
            assert shard.attributes == reference.attributes
    assert seen > len(whole) // 20


def test_a_truncated_shard_is_named(tmp_path: Path) -> None:
    path = tmp_path / NAME
    write_shard(path, "frames", frames([20, 30]), {"classes": 5})
    whole = path.read_bytes()
    for length in [*range(0, len(whole), 97), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(BadInput, match=NAME):
            read_shard(path)


def _spoilt(**changes: Any) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    arrays = {**frames([4, 6]), **{name: value for name, value in changes.items() if name in frames([1])}}
    return arrays, {"classes": 5} | {name: value for name, value in changes.items() if name not in arrays}


@pytest.mark.parametrize(
    ("spoilt", "reason"),
    [
        (_spoilt(classes=2), "there are 2 classes"),
        (_spoilt(targets=np.full(10, -1, np.int32)), "targets from -1"),
        (_spoilt(targets=np.zeros(9, np.int32)), "10 samples but 9 targets"),
        (_spoilt(targets=np.zeros(10, np.int64)), "not int32"),
        (_spoilt(utterances=np.array([0, 6, 4, 10])), "utterances must rise"),
        (_spoilt(utterances=np.array([0, 9])), "utterances must rise"),
        (_spoilt(features=np.full((10, 3), np.nan, np.float32)), "not finite"),
        (_spoilt(features=np.full((10, 3), -np.inf, np.float32)), "not finite"),
        (_spoilt(mean=np.zeros(3)), "come together"),
        (_spoilt(mean=np.zeros(3), standard_deviation=np.zeros(3)), "cannot normalise"),
        (_spoilt(mean=np.zeros(2), standard_deviation=np.ones(3)), "3 channels"),
        (_spoilt(classes="many"), "classes"),
    ],
)
def test_what_cannot_be_trained_on_is_not_written(tmp_path: Path, spoilt: Any, reason: str) -> None:
    with pytest.raises(BadInput, match=reason) as caught:
        write_shard(tmp_path / NAME, "frames", *spoilt)
    assert NAME in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_full_disk_or_an_interrupt_leaves_no_half_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    write_shard(tmp_path / NAME, "images", images(3), {"classes": 5})
    before = (tmp_path / NAME).read_bytes()

    def refuse(_: int) -> None:
        raise failure

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(BadInput if isinstance(failure, OSError) else KeyboardInterrupt) as caught:
        write_shard(tmp_path / NAME, "images", images(4), {"classes": 5})
    assert [path.name for path in tmp_path.iterdir()] == [NAME]
    assert (tmp_path / NAME).read_bytes() == before
    if isinstance(failure, OSError):
        assert NAME in str(caught.value) and "No space left" in str(caught.value)


def test_parts_are_found_in_order(tmp_path: Path) -> None:
    for name in ("test-noisy-00000-of-00001.h5", "dev-00000-of-00001.h5", "test-00000-of-00001.h5"):
        (tmp_path / name).touch()
    for number in (1, 0):
        (tmp_path / shard_name("train", number, 2)).touch()
    assert list(folder_parts(tmp_path)) == ["train", "dev", "test", "test-noisy"]
    assert [path.name[6:11] for path in folder_parts(tmp_path)["train"]] == ["00000", "00001"]


def test_folders_without_shards_and_with_two_sets_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such folder"):
        folder_parts(tmp_path / "nowhere")
    with pytest.raises(BadInput, match="holds no shards"):
        folder_parts(tmp_path)
    for count in (2, 3):
        (tmp_path / shard_name("train", 0, count)).touch()
    with pytest.raises(BadInput, match="several sets: of 2 and of 3"):
        folder_parts(tmp_path)


def _foreign(path: Path, **changes: Any) -> None:
    """A shard as another tool would write it: old format, no xxh3."""
    arrays = {**frames([4, 6]), **changes}
    with h5py.File(path, "w") as file:
        file.attrs["kind"], file.attrs["classes"] = "frames", 5
        for name in frames([1]):
            file.create_dataset(name, data=arrays[name], fletcher32=name != changes.get("without"))


def test_shards_of_other_tools_are_read(tmp_path: Path) -> None:
    _foreign(tmp_path / NAME)
    assert np.array_equal(read_shard(tmp_path / NAME).arrays["features"], frames([4, 6])["features"])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"targets": np.full(10, 5, np.int32)}, "targets from 5 to 5, but there are 5 classes"),
        ({"features": np.full((10, 3), np.nan, np.float32)}, "not finite"),
        ({"utterances": np.array([0, 11])}, "utterances must rise"),
        ({"without": "features"}, "features has no checksums"),
    ],
)
def test_faults_of_other_tools_shards_are_named(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    _foreign(tmp_path / NAME, **changes)
    with pytest.raises(BadInput, match=reason) as caught:
        read_shard(tmp_path / NAME)
    assert NAME in str(caught.value)


def test_utterances_keep_their_names(tmp_path: Path) -> None:
    """In UTF-8, across shards, and covered by the checksums; two alike or one with a blank are refused."""
    names = np.char.encode(["ann-1", "zoë-10"], "utf-8")
    arrays = {"features": np.ones((3, 2), np.float32), "targets": np.zeros(3, np.int32)}
    arrays["utterances"] = np.array([0, 1, 3])
    path = tmp_path / "train-00000-of-00001.h5"
    write_shard(path, "frames", {**arrays, "keys": names}, {"classes": 1})
    assert [key.decode() for key in read_shard(path).arrays["keys"]] == ["ann-1", "zoë-10"]
    assert Corpus(tmp_path, "train").keys == ["ann-1", "zoë-10"]
    with h5py.File(path, "r+") as file:
        file["keys"][0] = b"ann-2"
    with pytest.raises(BadInput, match="keys does not match its checksum"):
        read_shard(path)
    for bad in (["ann", "ann"], ["ann", "b c"], ["ann"], ["ann", ""]):
        with pytest.raises(BadInput, match="keys must name each of 2"):
            write_shard(path, "frames", {**arrays, "keys": np.char.encode(bad)}, {"classes": 1})


def test_attributes_are_set_in_place(tmp_path: Path) -> None:
    """The arrays stay, removed attributes are gone, and the file grows by no more than the new ones."""
    path, arrays, mean = tmp_path / NAME, frames([300, 200]), np.zeros(3, np.float32)
    write_shard(path, "frames", arrays, {"classes": 5, "notes": "first", "more": 1})
    before, inode = path.stat().st_size, path.stat().st_ino
    set_attributes(path, {"classes": 7, "mean": mean, "standard_deviation": mean + 1, "notes": None, "unknown": None})
    shard = read_shard(path)
    assert shard.attributes["classes"] == 7 and np.array_equal(shard.attributes["mean"], mean)
    assert shard.attributes["more"] == 1 and "notes" not in shard.attributes
    assert all(np.array_equal(shard.arrays[name], array) for name, array in arrays.items())
    assert path.stat().st_ino == inode and path.stat().st_size < before + 4096


SETTING = """
import os, resource, sys
from pathlib import Path
from mpitrain.data import shards
from mpitrain.errors import BadInput
path, how = Path(sys.argv[1]), sys.argv[2]
if how == "killed":
    shards.attributes_digest = lambda plain: os._exit(9)
else:
    limit = path.stat().st_size + 100
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    shards.set_attributes(path, {"classes": 7, "notes": "n" * 1000})
except BadInput as error:
    print(error)
"""


@pytest.mark.parametrize(("how", "status"), [("killed", 9), ("full", 0)])
def test_attributes_that_are_set_by_half_are_noticed(
    tmp_path: Path, how: str, status: int, run_command: Callable[..., Any]
) -> None:
    """After a kill the shard is refused; where there is no room nothing is begun."""
    path = tmp_path / NAME
    write_shard(path, "images", images(50), {"classes": 5})
    ended = run_command([sys.executable, "-B", "-c", SETTING, str(path), how], 60)
    assert ended.status == status, ended.err
    if how == "full":
        assert ended.out.strip() == f"{path}: cannot be written: File too large"
        assert read_shard(path).attributes["classes"] == 5
    else:
        with pytest.raises(BadInput, match="cannot be read"):
            read_shard(path)
