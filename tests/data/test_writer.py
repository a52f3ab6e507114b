"""The shard writer: pieces of limited size, and interruptions."""

from pathlib import Path

import numpy as np
import pytest

from mpitrain.data.corpus import open_corpus, parts
from mpitrain.data.reader import read_shard
from mpitrain.data.shards import folder_parts
from mpitrain.data.writer import ShardWriter
from mpitrain.errors import BadInput

PAGE = Path(__file__).resolve().parents[2] / "docs/shards.md"
UTTERANCES = [np.full((length, 2), length, np.float32) for length in (3, 1, 4, 1, 5, 9, 2, 6)]


def _writer(folder: Path, source: str = "test") -> ShardWriter:
    return ShardWriter(folder, "train", "frames", {"classes": 10, "source": source}, limit=8 * 8)


def _add(writer: ShardWriter, utterances: list[np.ndarray]) -> None:
    for features in utterances:
        writer.add(features, features[:, 0].astype(np.int32))


def _content(folder: Path) -> list[tuple[list[int], list[int]]]:
    shards = [read_shard(path).arrays for path in folder_parts(folder)["train"]]
    return [(shard["utterances"].tolist(), shard["targets"].tolist()) for shard in shards]


def test_shards_hold_whole_utterances_up_to_the_limit(tmp_path: Path) -> None:
    writer = _writer(tmp_path)
    _add(writer, UTTERANCES)
    assert writer.finish() == 4
    assert [offsets for offsets, _ in _content(tmp_path)] == [[0, 3, 4, 8], [0, 1, 6], [0, 9], [0, 2, 8]]


def test_an_interrupted_writer_goes_on(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    writer = _writer(whole)
    _add(writer, UTTERANCES)
    writer.finish()
    _add(_writer(broken), UTTERANCES[:5])
    with pytest.raises(BadInput, match="holds no shards"):
        parts(broken)
    writer = _writer(broken)
    assert writer.done == 3  # the first shard was whole
    _add(writer, UTTERANCES[writer.done :])
    writer.finish()
    assert _content(broken) == _content(whole)


def test_utterances_keep_their_names(tmp_path: Path) -> None:
    """Over several shards, also after an interruption; all have one, or none, and images never."""
    _add_named(_writer(tmp_path), 5)
    writer = _writer(tmp_path)
    _add_named(writer, len(UTTERANCES), writer.done)
    writer.finish()
    assert open_corpus(tmp_path, "train").keys == [f"süd-{number}" for number in range(len(UTTERANCES))]
    half = ShardWriter(tmp_path, "dev", "frames", {"classes": 10})
    half.add(UTTERANCES[0], np.zeros(3, np.int32), key="one")
    half.add(UTTERANCES[0], np.zeros(3, np.int32))
    with pytest.raises(BadInput, match="keys must name each of 2 utterances"):
        half.finish()
    with pytest.raises(BadInput, match="images have no speakers or keys"):
        images = ShardWriter(tmp_path, "test", "images", {"classes": 10})
        images.add(np.zeros((1, 4, 4, 3), np.uint8), np.zeros(1, np.int32), key="one")


def _add_named(writer: ShardWriter, stop: int, start: int = 0) -> None:
    for number in range(start, stop):
        features = UTTERANCES[number]
        writer.add(features, features[:, 0].astype(np.int32), key=f"süd-{number}")


def test_the_documented_example_makes_shards_that_can_be_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it stands there."""
    monkeypatch.chdir(tmp_path)
    exec(PAGE.read_text().split("```python\n")[1].split("```")[0], {})
    assert parts(Path("shards/own")) == ["train", "test"]
    corpus = open_corpus(Path("shards/own"), "test", context=[5, 5])
    assert corpus.shape == (11, 40) and corpus.keys is not None and corpus.keys[0] == "test-000"


def test_other_attributes_do_not_mix(tmp_path: Path) -> None:
    _add(_writer(tmp_path), UTTERANCES)
    with pytest.raises(BadInput, match="another source"):
        _writer(tmp_path, "elsewhere")


def test_a_part_is_written_once(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no samples"):
        _writer(tmp_path).finish()
    writer = _writer(tmp_path)
    _add(writer, UTTERANCES)
    writer.finish()
    with pytest.raises(BadInput, match="already holds"):
        _writer(tmp_path)
