"""check: names every bad shard."""

from pathlib import Path

import numpy as np
import pytest

from mpitrain.data.check import check
from mpitrain.data.shards import write_shard
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


def test_all_bad_shards_are_listed_and_the_first_is_raised(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    paths = _write(tmp_path)
    paths[0].write_bytes(paths[0].read_bytes()[:-100])
    paths[2].unlink()
    with pytest.raises(BadInput, match=paths[0].name):
        check(tmp_path)
    shown = capsys.readouterr().out
    assert "1 of 3" in shown and paths[0].name in shown and f"{paths[2].name}: missing" in shown
