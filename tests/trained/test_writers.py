"""Files of predictions, read back by other means than those that wrote them."""

import json
import os
from pathlib import Path

import h5py
import kaldiio
import numpy as np
import pytest

from mpitrain.errors import BadInput
from mpitrain.files import write_whole
from mpitrain.trained.writers import WRITERS, Content, open_writer, require_known

ROWS = np.arange(18, dtype=np.float32).reshape(6, 3) / 7
CONTENT = Content(
    "log_posteriors", 3, np.arange(6, dtype=np.int32), np.array([0, 1, 6]), ["zoë-1", "ann-2"], {"part": "test"}
)


def write(path: Path, *sizes: int) -> None:
    """All rows, so many at a time."""
    with open_writer(path, CONTENT) as next_rows:
        done = 0
        for size in sizes:
            next_rows(ROWS[done : done + size])
            done += size


@pytest.mark.parametrize("sizes", [(6,), (2, 3, 1), (1, 1, 1, 1, 1, 1)])
def test_hdf5_reads_back(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    write(tmp_path / "deep" / "p.h5", *sizes)
    with h5py.File(tmp_path / "deep" / "p.h5") as file:
        np.testing.assert_array_equal(file["log_posteriors"], ROWS)
        np.testing.assert_array_equal(file["utterances"], [0, 1, 6])
        np.testing.assert_array_equal(file["targets"], range(6))
        assert [key.decode() for key in file["keys"]] == ["zoë-1", "ann-2"] and file.attrs["part"] == "test"
        assert all(dataset.fletcher32 for dataset in file.values())


@pytest.mark.parametrize("sizes", [(6,), (2, 3, 1)])
def test_npz_reads_back_without_pickle(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    write(tmp_path / "p.npz", *sizes)
    with np.load(tmp_path / "p.npz", allow_pickle=False) as file:
        np.testing.assert_array_equal(file["log_posteriors"], ROWS)
        assert file["log_posteriors"].dtype == np.float32
        np.testing.assert_array_equal(file["utterances"], [0, 1, 6])
        assert list(file["keys"]) == ["zoë-1", "ann-2"] and json.loads(str(file["about"])) == {"part": "test"}


@pytest.mark.parametrize("sizes", [(6,), (2, 3, 1), (1, 1, 1, 1, 1, 1)])
def test_ark_and_scp_read_back(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    """By kaldiio, and byte by byte: key, blank, \\0B, FM, blank, \\4 rows, \\4 columns, numbers."""
    write(tmp_path / "p.ark", *sizes)
    found = kaldiio.load_scp(str(tmp_path / "p.scp"))
    assert list(found) == ["zoë-1", "ann-2"]
    np.testing.assert_array_equal(found["zoë-1"], ROWS[:1])
    np.testing.assert_array_equal(found["ann-2"], ROWS[1:])
    by_hand = b""
    for key, rows in (("zoë-1", ROWS[:1]), ("ann-2", ROWS[1:])):
        header = b"\4" + len(rows).to_bytes(4, "little") + b"\4" + (3).to_bytes(4, "little")
        by_hand += f"{key} ".encode() + b"\0BFM " + header + rows.astype("<f4").tobytes()
    assert (tmp_path / "p.ark").read_bytes() == by_hand


@pytest.mark.parametrize("suffix", WRITERS)
def test_a_file_is_whole_or_as_it_was(tmp_path: Path, suffix: str) -> None:
    """What stood there before a failed writing stands there after it, and nothing beside it."""
    path = tmp_path / f"p{suffix}"
    write(path, 6)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(BadInput, match="a shard"), open_writer(path, CONTENT) as next_rows:
        next_rows(ROWS[:2] + 1)
        raise BadInput("a shard is damaged")
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.mark.parametrize("suffix", [".h5", ".npz", ".ark"])
def test_a_pipe_is_not_replaced(tmp_path: Path, suffix: str) -> None:
    """Nor is a device, nor what a link leads to; the second file of an ark is looked at, too."""
    pipe = tmp_path / f"p{'.scp' if suffix == '.ark' else suffix}"
    os.mkfifo(pipe)
    with pytest.raises(BadInput, match=f"cannot be written: {pipe.name} is not a regular file"):
        write(tmp_path / f"p{suffix}", 6)
    with pytest.raises(BadInput, match=f"{pipe}: cannot be written: {pipe.name} is not a regular file"):
        write_whole(pipe, "text")
    assert pipe.is_fifo() and list(tmp_path.iterdir()) == [pipe]


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"p\.txt: ends in none of \.h5"):
        require_known(tmp_path / "p.txt")
    (tmp_path / "d.h5").mkdir()
    with pytest.raises(BadInput, match=r"d\.h5: is a folder"):
        require_known(tmp_path / "d.h5")
    huge = Content("posteriors", 1 << 60, CONTENT.targets, CONTENT.utterances, CONTENT.keys, {})
    with (
        pytest.raises(BadInput, match=rf"needs up to {6 * 4 * 2**60 + 2**20:,} bytes, the disk has"),
        open_writer(tmp_path / "p.h5", huge),
    ):
        pass
    with pytest.raises(BadInput, match="/proc/nothing"), open_writer(Path("/proc/nothing/p.h5"), CONTENT):
        pass
