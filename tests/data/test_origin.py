"""What a run folder says of the data that its network was trained on."""

import re
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from mpitrain import config as configuration
from mpitrain.data import origin
from mpitrain.data.digits import embedded
from mpitrain.data.shards import write_shard
from mpitrain.errors import BadInput
from mpitrain.sampling.batch import Batch
from mpitrain.training.parts import Shards, form_of, held_out


def frames(folder: Path, part: str, mean: float, dims: int = 3, classes: int = 4) -> np.ndarray:
    """A part of two utterances of 5 and 4 frames; its features."""
    features = np.arange(9 * dims, dtype=np.float32).reshape(9, dims) ** 1.5
    arrays = {"features": features, "targets": np.arange(9) % classes, "utterances": np.array([0, 5, 9])}
    arrays["targets"] = arrays["targets"].astype(np.int32)
    attributes = {"classes": classes, "mean": np.full(dims, mean), "standard_deviation": np.full(dims, 2.0)}
    write_shard(folder / f"{part}-00000-of-00001.h5", "frames", arrays, attributes)
    return features


def test_the_record_reads_back_as_it_was_written(tmp_path: Path) -> None:
    """Digits: 1438 images of 8 x 8 in ten classes, and exactly the stored mean."""
    told = origin.of_part(embedded())
    (tmp_path / origin.NAME).write_text(origin.text(told))
    assert origin.read(tmp_path) == told
    assert (told.kind, told.shape, told.classes, sum(told.class_counts)) == ("images", [8, 8, 1], 10, 1438)
    assert told.statistics["mean"].astype(np.float32)[0] == np.float32(told.mean[0])  # type: ignore[index]
    (tmp_path / origin.NAME).write_text("{")
    with pytest.raises(BadInput, match=origin.NAME):
        origin.read(tmp_path)
    assert origin.read(tmp_path / "elsewhere") is None


def test_held_out_parts_are_normalised_like_the_training_part(tmp_path: Path) -> None:
    """(x − 1)/2 by hand, though the test part itself says 7; and its edge frames stand in for those beyond."""
    frames(tmp_path, "train", 1.0)
    features = frames(tmp_path, "test", 7.0)
    frames(tmp_path, "dev", 7.0)
    assert held_out(Shards(configuration.load(None, []), tmp_path).parts()) == ["test", "dev"]
    config = configuration.load(None, ["data.context=[1, 2]"])
    told = origin.of_part(tmp_path)
    corpus = Shards(config, tmp_path).opened("test", told)
    assert corpus.form == form_of(config, told) and corpus.shape == (4, 3)
    batch = corpus.gather(np.array([5, 8]), Batch(np.empty((2, 4, 3), np.float32), np.empty(2, np.int32)))
    np.testing.assert_array_equal(batch.inputs[0], (features[[5, 5, 6, 7]] - 1) / 2)
    np.testing.assert_array_equal(batch.inputs[1], (features[[7, 8, 8, 8]] - 1) / 2)


def test_the_kinds_of_inputs_and_targets_are_told_apart() -> None:
    known = origin.Origin("samples", [3], 0, [], samples=9, targets=[2], dtypes=["float", "float"])
    other = replace(known, dtypes=["int32", "float"])
    line = "data.py: part test has inputs of int32 and targets [2] of float, the network was trained on inputs of float"
    with pytest.raises(BadInput, match=re.escape(line)):
        known.require(other, "data.py", "test")


@pytest.mark.parametrize(("other", "words"), [({"dims": 2}, "2 features.*on 3"), ({"classes": 5}, "5 classes.*on 4")])
def test_a_folder_that_does_not_fit_is_named(tmp_path: Path, other: dict[str, int], words: str) -> None:
    frames(tmp_path / "own", "train", 0.0)
    frames(tmp_path / "other", "test", 0.0, **other)
    config = configuration.load(None, ["data.context=[1, 2]"])
    with pytest.raises(BadInput, match=f"other: part test .*{words}"):
        Shards(config, tmp_path / "other").opened("test", origin.of_part(tmp_path / "own"))
    with pytest.raises(BadInput, match="holds images, the network was trained on frames"):
        config = configuration.load(None, [])
        Shards(config, embedded()).opened("test", origin.of_part(tmp_path / "own"))
