"""The embedded digits: all scans there, none twice, in under 100 kB."""

from pathlib import Path

import numpy as np
import pytest

from mpitrain.data.digits import embedded, prepare_digits
from mpitrain.data.shards import folder_parts
from mpitrain.errors import BadInput

from .alone import read_shard


def _shards(folder: Path) -> list:
    return [read_shard(folder / f"{part}-00000-of-00001.h5") for part in ("train", "test")]


def test_counts_source_and_licence() -> None:
    train, test = _shards(embedded())
    assert (len(train.arrays["targets"]), len(test.arrays["targets"])) == (1438, 359)
    counts = np.bincount(np.concatenate([train.arrays["targets"], test.arrays["targets"]]))
    assert counts.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]  # as UCI's optdigits.names lists them
    assert train.attributes["licence"] == "CC BY 4.0" and "UCI" in train.attributes["source"]
    assert sum(path.stat().st_size for path in embedded().glob("*.h5")) < 100_000


def test_shades_and_normalisation() -> None:
    images = _shards(embedded())[0].arrays["images"]
    attributes = _shards(embedded())[0].attributes
    assert images.shape[1:] == (8, 8, 1) and images.max() == 16
    normalised = (images - attributes["mean"].astype(float)) / attributes["standard_deviation"]
    assert abs(normalised.mean()) < 1e-6 and abs(normalised.std() - 1) < 1e-6


def test_prepare_writes_the_same_scans(tmp_path: Path) -> None:
    prepare_digits(tmp_path)
    assert list(folder_parts(tmp_path)) == ["train", "test"]
    for mine, theirs in zip(_shards(tmp_path), _shards(embedded()), strict=True):
        assert all(np.array_equal(mine.arrays[name], theirs.arrays[name]) for name in theirs.arrays)


@pytest.mark.parametrize("name", ["train-00000-of-00001.h5", "dev-00000-of-00002.h5"])
def test_another_corpus_is_kept(tmp_path: Path, name: str) -> None:
    """As by every other importer; the digits themselves may be written again."""
    prepare_digits(tmp_path / "digits")
    prepare_digits(tmp_path / "digits")
    (tmp_path / name).write_bytes(b"speech")
    with pytest.raises(BadInput, match=f"holds shards of another corpus, .* such as {name}; name another folder"):
        prepare_digits(tmp_path)
    assert [(path.name, path.read_bytes()) for path in tmp_path.glob("*.h5")] == [(name, b"speech")]
