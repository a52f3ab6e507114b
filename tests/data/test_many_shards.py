"""More shards than a process may open files: they are opened as needed."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpitrain.data.corpus import Corpus
from mpitrain.data.digits import embedded
from mpitrain.data.shards import folder_parts, shard_name, write_shard
from mpitrain.errors import BadInput
from mpitrain.sampling.batch import Batch

from .alone import read_shard

SHARDS, FILES = 200, 128
LIMITED = ["bash", "-c", f'ulimit -n {FILES}; exec "$@"', "limited"]

PREPARE = """
import os, sys
os.fsync = lambda file: None
from mpitrain.__main__ import main
from mpitrain.data.importers import arrays, plan
plan.LARGEST = plan.SMALLEST = arrays.SMALLEST = 12
sys.exit(main(["prepare", "arrays", sys.argv[1], sys.argv[2], "--features", "x", "--jobs", "1"]))
"""
WRITE = """
import os, sys
os.fsync = lambda file: None
from pathlib import Path
import numpy as np
from mpitrain.data.writer import ShardWriter
for utterances in 150, 201, 201:  # the first one is interrupted, the last one compares
    writer = ShardWriter(Path(sys.argv[1]), "train", "frames", {"classes": 2}, limit=12)
    for _ in range(utterances):
        writer.add(np.ones((1, 3), np.float32), np.zeros(1, np.int32))
    if utterances == 201:
        assert writer.finish() == 201
"""


def _digits(folder: Path) -> Path:
    """The embedded digits' 359 of the test part, as both parts, each in many shards."""
    kind, arrays, attributes = read_shard(folder_parts(embedded())["test"][0])
    for number in range(SHARDS):
        own = {name: array[number::SHARDS] for name, array in arrays.items()}
        for part in ("train", "test"):
            path = folder / shard_name(part, number, SHARDS)
            write_shard(path, kind, own, {"classes": attributes["classes"]})
    return folder


def test_many_shards_are_trained_on_checked_and_evaluated(
    tmp_path: Path, run_command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.fsync", lambda file: None)
    folder = _digits(tmp_path / "shards")
    mpirun = Path(sys.executable).with_name("mpirun")
    if not mpirun.exists():
        pytest.skip("this environment has no mpirun of its own")
    keys = ("data.memory_limit_gb=1e-9", "training.epochs=0.3", "algorithm.name=allreduce", f"data.path={folder}")
    train = ["train", *(word for key in keys for word in ("--set", key)), "--out", str(tmp_path / "run")]
    program = [sys.executable, "-m", "mpitrain"]
    for command in (
        [str(mpirun), "-n", "2", *program, *train],
        [*program, "evaluate", str(tmp_path / "run"), str(folder)],
        [*program, "check", str(folder)],
    ):
        ended = run_command([*LIMITED, *command], 180)
        assert ended.status == 0, (command, ended.out, ended.err)


@pytest.mark.parametrize("script", [PREPARE, WRITE])
def test_many_shards_are_written(tmp_path: Path, run_command: Callable[..., Any], script: str) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones((201, 3), np.float32), targets=np.zeros(201, np.int64))
    words = [str(tmp_path / "a.npz"), str(tmp_path / "out")] if script == PREPARE else [str(tmp_path / "out")]
    ended = run_command([*LIMITED, sys.executable, "-c", script, *words], 120)
    assert ended.status == 0, ended.err
    assert len(folder_parts(tmp_path / "out")["train"]) > SHARDS
    assert Corpus(tmp_path / "out", "train").samples == 201


def test_a_shard_that_another_file_replaces_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpitrain.data.reader.MOST", 1)
    for number in range(2):
        arrays = {"images": np.full((4, 2, 2, 1), number, np.uint8), "targets": np.zeros(4, np.int32)}
        write_shard(tmp_path / shard_name("train", number, 2), "images", arrays, {"classes": 2})
    corpus = Corpus(tmp_path, "train", memory_limit=0)
    batch = Batch(np.empty((8, 2, 2, 1), np.float32), np.empty(8, np.int32))
    for _ in range(2):
        corpus.gather(np.arange(8), batch)
        assert batch.inputs[:, 0, 0, 0].tolist() == [0.0] * 4 + [1.0] * 4
    write_shard(tmp_path / shard_name("train", 0, 2), "images", arrays, {"classes": 2})
    with pytest.raises(BadInput, match=r"train-00000-of-00002\.h5: has changed"):
        corpus.gather(np.arange(8), batch)
