"""Imports as such: several processes and ranks, an interruption, a fault, and what is left behind."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpitrain.data.importers.importing import Importing
from mpitrain.data.importers.plan import LARGEST, PIECES, SMALLEST, CorpusPlan, shard_slices
from mpitrain.data.normalising import moments, statistics
from mpitrain.errors import BadInput
from mpitrain.files import claimed

from .alone import Alone, imported, read, refused

COUNTS = {"train": 4, "test": 2}


def _make(calls: list[int], failing: list[int], chunk: int) -> dict[str, np.ndarray]:
    """Three images of 2 x 2, all pixels 10·chunk but one."""
    calls.append(chunk)
    if chunk in failing:
        raise BadInput(f"source-{chunk}: spoilt")
    images = np.full((3, 2, 2, 1), 10 * chunk, np.uint8)
    images[1, 0, 0] += 1
    return {"images": images, "targets": np.full(3, chunk % 3, np.int32)}


def _no_files(chunk: int) -> list[Path]:
    return []


def _plan(calls: list[int], failing: list[int] = [], source: str = "toys") -> CorpusPlan:  # noqa: B006
    chunks = {"train": [0, 1, 2, 3], "test": [4, 5]}
    return CorpusPlan("images", {"source": source}, chunks, _no_files, lambda chunk: _make(calls, failing, chunk))


def test_shards_come_in_order_with_the_statistics_of_the_training_part(tmp_path: Path) -> None:
    parts = imported(tmp_path / "out", lambda: _plan([]))
    assert {part: found["shards"] for part, found in parts.items()} == COUNTS
    assert parts["test"]["images"][:, 1, 1, 0].tolist() == [40] * 3 + [50] * 3
    assert parts["test"]["targets"].tolist() == [1] * 3 + [2] * 3
    for found in parts.values():
        pixels = parts["train"]["images"].astype(float)
        assert found["classes"] == 3 and found["source"] == "toys"
        assert found["mean"] == pytest.approx(pixels.mean()) and found["standard_deviation"] == pytest.approx(
            pixels.std()
        )
        assert found["covariance"].ravel() == pytest.approx([pixels.var()])
        assert not any(name.startswith("moments") for name in found)


def test_after_a_fault_only_what_is_missing_is_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first: list[int] = []
    with pytest.raises(BadInput, match="source-3: spoilt"):
        imported(tmp_path, lambda: _plan(first, [3]))
    assert not list(tmp_path.glob("[!.]*"))
    again: list[int] = []
    imported(tmp_path, lambda: _plan(again))
    assert again and 3 in again and not set(again) & (set(first) - {3})
    assert "shards are there already" in capsys.readouterr().out
    third: list[int] = []
    imported(tmp_path, lambda: _plan(third))
    assert not third  # all there
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"{part}-{number:05d}-of-{count:05d}.h5"
        for part, count in (("test", 2), ("train", 4))
        for number in range(count)
    ]


def test_a_half_written_shard_is_made_anew(tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        imported(tmp_path, lambda: _plan([], [5]))
    (tmp_path / ".train-00001.h5").write_bytes((tmp_path / ".train-00001.h5").read_bytes()[:700])
    (tmp_path / ".writing-.train-00002.h5").write_bytes(b"half")
    calls: list[int] = []
    imported(tmp_path, lambda: _plan(calls))
    assert sorted(calls) == [1, 5] and not list(tmp_path.glob(".*"))


def test_a_damaged_shard_is_named_and_made_anew(tmp_path: Path) -> None:
    imported(tmp_path, lambda: _plan([]))
    shard = tmp_path / "train-00001-of-00004.h5"
    content = shard.read_bytes()
    shard.write_bytes(content[:-1])
    with pytest.raises(BadInput, match=rf"{shard}: cannot be read: .*; delete it, and the same command makes it anew"):
        imported(tmp_path, lambda: _plan([]))
    shard.unlink()
    calls: list[int] = []
    imported(tmp_path, lambda: _plan(calls))
    assert calls == [1] and shard.read_bytes() == content


def test_what_another_import_left_is_not_taken(tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        imported(tmp_path, lambda: _plan([], [5], source="others"))
    calls: list[int] = []
    imported(tmp_path, lambda: _plan(calls))
    assert sorted(calls) == [0, 1, 2, 3, 4, 5]
    with pytest.raises(
        BadInput, match=r"already holds shards of another corpus, of another split or of .*such as t.*another folder"
    ):
        imported(tmp_path, lambda: _plan([], source="others"))


def test_a_folder_belongs_to_one_import_at_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two would take each other's provisional shards for their own."""
    calls: list[int] = []
    with claimed(tmp_path):
        refused(tmp_path, lambda: _plan(calls), f"{tmp_path}: another process is preparing shards in it", capsys)
    assert not calls
    imported(tmp_path, lambda: _plan(calls))
    assert len(calls) == 6
    with pytest.raises(BadInput, match="spoilt"):
        imported(tmp_path / "other", lambda: _plan([], [3]))
    imported(tmp_path / "other", lambda: _plan([]))


def test_unlike_inputs_are_refused(tmp_path: Path) -> None:
    def make(chunk: int) -> dict[str, np.ndarray]:
        return {"images": np.zeros((1, 2, chunk, 1), np.uint8), "targets": np.zeros(1, np.int32)}

    with pytest.raises(BadInput, match="toys: inputs of 2 x 3 x 1 in train and 2 x 4 x 1 in test"):
        imported(
            tmp_path, lambda: CorpusPlan("images", {"source": "toys"}, {"train": [3], "test": [4]}, _no_files, make)
        )
    assert not list(tmp_path.glob("[!.]*"))


def test_a_programming_error_is_not_swallowed(tmp_path: Path) -> None:
    plan = CorpusPlan("images", {"source": "toys"}, {"train": [0]}, _no_files, lambda chunk: {}[chunk])
    with pytest.raises(KeyError):
        Importing(Alone(), tmp_path, 1).run(lambda: plan)  # type: ignore[arg-type]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="file/out: cannot be written"):
        imported(tmp_path / "file" / "out", lambda: _plan([]))


def test_moments_make_mean_deviation_and_covariance() -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (50, 3, 4, 3), np.uint8)
    found = statistics([moments(images[:20]), moments(images[20:])])
    pixels = images.reshape(-1, 3).astype(float)
    assert np.allclose(found["mean"], pixels.mean(0)) and np.allclose(found["standard_deviation"], pixels.std(0))
    assert np.allclose(found["covariance"], np.cov(pixels.T, bias=True), rtol=1e-5)
    features = rng.normal(3, 2, (500, 40)).astype(np.float32)
    found = statistics([moments(features[:499]), moments(features[499:])])
    assert np.allclose(found["mean"], features.mean(0), rtol=1e-5) and "covariance" not in found
    assert np.allclose(found["standard_deviation"], features.std(0), rtol=1e-5)


@pytest.mark.parametrize(("samples", "each"), [(1, 3072), (50_000, 3072), (10, 10**9), (7, 1), (1_281_167, 196_608)])
def test_shards_are_neither_small_nor_large(samples: int, each: int) -> None:
    lengths = [own.stop - own.start for own in shard_slices(samples, each)]
    assert sum(lengths) == samples and min(lengths) >= 1 and max(lengths) - min(lengths) <= 1
    assert len(lengths) == 1 or min(lengths) * each > SMALLEST / 2
    assert max(lengths) == 1 or max(lengths) * each <= LARGEST + each
    assert len(lengths) <= max(PIECES, -(-samples * each // LARGEST)) + 1


PROGRAM = """
import sys, time
from pathlib import Path
import numpy as np
from mpitrain.data.importers.plan import CorpusPlan

HERE = Path(sys.argv[1])

def make(chunk):
    assert "mpi4py" not in sys.modules or __name__ == "__main__"
    (HERE / f"begun-{chunk}").touch()
    until = time.monotonic() + 100
    while chunk > 1 and not (HERE / "gate").exists() and time.monotonic() < until:
        time.sleep(0.02)
    return {"images": np.full((1, 2, 2, 1), chunk, np.uint8), "targets": np.zeros(1, np.int32)}

if __name__ == "__main__":
    from mpitrain.data.importers.importing import Importing
    from mpitrain.mpi import Transport
    from mpitrain.signals import Stop
    stop = Stop()
    stop.install()
    plan = CorpusPlan("images", {"source": "toys"}, {"train": list(range(12))}, lambda chunk: [], make)
    sys.exit(Importing(Transport(), HERE / "out", int(sys.argv[2]), stop).run(lambda: plan))
"""


@pytest.mark.parametrize(("jobs", "number"), [(2, signal.SIGINT), (1, signal.SIGTERM)])
def test_an_interrupted_import_finishes_its_shards_and_goes_on_later(tmp_path: Path, jobs: int, number: int) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), str(tmp_path), str(jobs)]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen(command, env=environment, stdout=said, stderr=said, start_new_session=True)
    try:
        _until(lambda: (tmp_path / "begun-2").exists(), process)  # 0 and 1 are done or under way, 2 waits at the gate
        os.killpg(process.pid, number)
        _until(lambda: "finishing the shards under way" in (tmp_path / "said").read_text(), process)
        (tmp_path / "gate").touch()
        status = process.wait(90)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    out = (tmp_path / "said").read_text()
    assert status == 130 and "the same command goes on from here" in out and "Traceback" not in out, out
    assert not list((tmp_path / "out").glob("[!.]*")) and not list((tmp_path / "out").glob(".writing*"))
    assert len(list((tmp_path / "out").glob(".train-*.h5"))) >= 2
    for begun in tmp_path.glob("begun-*"):
        begun.unlink()
    again = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert again.returncode == 0 and "shards are there already" in again.stdout, again
    assert not (tmp_path / "begun-0").exists()
    assert read(tmp_path / "out")["train"]["images"][:, 0, 0, 0].tolist() == list(range(12))


def _until(condition: Callable[[], bool], process: "subprocess.Popen[Any]") -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert process.poll() is None, process.returncode
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_killed_process_is_not_waited_for(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    kill = "if chunk == 3: import os; os.kill(os.getpid(), 9)"
    program.write_text(PROGRAM.replace("    until =", f"    {kill}\n    until =").replace("chunk > 1 and", "False and"))
    command = [sys.executable, str(program), str(tmp_path), "2"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert "a process of the import was killed" in ended.stderr and ended.returncode != 0


def test_a_process_that_dies_while_the_work_is_planned(tmp_path: Path) -> None:
    def planning() -> CorpusPlan:
        children = multiprocessing.active_children()
        assert children
        for child in children:
            child.kill()
            child.join(60)
        return CorpusPlan("images", {"source": "toys"}, {"train": [0, 1]}, _no_files, _never)

    with pytest.raises(BadInput, match="a process of the import was killed"):
        Importing(Alone(), tmp_path / "out", jobs=2).run(planning)  # type: ignore[arg-type]
    assert not list((tmp_path / "out").glob("[!.]*"))


def _never(chunk: int) -> dict[str, np.ndarray]:
    raise AssertionError(chunk)


def test_ranks_share_the_work_and_a_fault(launch: Callable[..., Any], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {"images": rng.integers(0, 256, (4000, 28, 28, 1), np.uint8), "targets": rng.integers(0, 10, 4000)}
    np.savez(tmp_path / "a.npz", **arrays)
    words = "prepare", "arrays", "a.npz", "--images", "images"
    for ranks in (1, 3):
        ended = launch(ranks, *words, str(tmp_path / f"out-{ranks}"), "--jobs", "1")
        assert ended.status == 0, ended.err
        assert ended.out.count("\ntrain  ") == 1
    for path in (tmp_path / "out-1").iterdir():
        assert path.read_bytes() == (tmp_path / "out-3" / path.name).read_bytes()
    np.savez(tmp_path / "a.npz", **arrays | {"targets": -arrays["targets"]})
    ended = launch(3, *words, str(tmp_path / "bad"), "--jobs", "2")
    assert ended.status == 2 and ended.err.count("mpitrain: ") == 1 and "Traceback" not in ended.err
    assert "a.npz: targets holds -9; classes are 0 to" in ended.err
    assert not list((tmp_path / "bad").glob("[!.]*"))
