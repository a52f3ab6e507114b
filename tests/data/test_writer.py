"""The shard writer: pieces of limited size, and interruptions."""

from pathlib import Path

import numpy as np
import pytest

from mpitrain.data.corpus import parts
from mpitrain.data.reader import read_shard
from mpitrain.data.shards import folder_parts
from mpitrain.data.writer import ShardWriter
from mpitrain.errors import BadInput

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
