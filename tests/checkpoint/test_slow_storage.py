"""Slow storage: a rank that waits for its disk is alive, and the others go on waiting for it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

#: The program with a disk that takes so many seconds for an fsync of a file with one of these names; `opened` gets the
#: names of those that are opened to be read, each of which takes so many seconds, too.
PROGRAM = """
import io, os, sys, time
from pathlib import Path
fsync, plain_open = os.fsync, Path.open
def slow_fsync(handle):
    if any(name in os.readlink(f"/proc/self/fd/{{handle}}") for name in {written}):
        time.sleep({seconds})
    fsync(handle)
def slow_open(self, mode="r", *arguments, **more):
    if mode == "rb" and self.name in {read}:
        with plain_open(Path("opened"), "a") as log:
            log.write(self.name + "\\n")
        time.sleep({seconds})
    return plain_open(self, mode, *arguments, **more)
os.fsync, Path.open = slow_fsync, slow_open
from mpitrain.__main__ import main
sys.exit(main())
"""
DEADLINE = 4  # seconds; enough for whatever else a busy machine does


def slow(folder: Path, seconds: float, written: tuple[str, ...] = (), read: tuple[str, ...] = ()) -> str:
    """Write the program."""
    (folder / "slow.py").write_text(PROGRAM.format(seconds=seconds, written=written, read=read))
    return "slow.py"


def settings(name: str, *more: str) -> list[str]:
    """A short training with a short deadline."""
    given = (f"algorithm.name={name}", f"run.deadline={DEADLINE}", "training.epochs=1", "run.evaluate_every=0", *more)
    return [word for each in given for word in ("--set", each)]


@pytest.mark.parametrize(
    ("name", "files"), [("allreduce", ("state.h5",)), ("easgd", ("rank-00002.h5", "summary.json"))]
)
def test_a_write_that_takes_longer_than_the_deadline_ends_no_run(
    launch: Callable[..., Any], tmp_path: Path, name: str, files: tuple[str, ...]
) -> None:
    """At the end: rank 0 is slow to write the state, or another rank its own piece and then rank 0 the summary."""
    program = slow(tmp_path, 1.5 * DEADLINE, files)
    ended = launch(3, *settings(name), "--out", "run", program=(program,))
    assert ended.status == 0, ended.err
    assert (tmp_path / "run" / "checkpoints" / f"{1438:012d}").is_dir()
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["exit_reason"] == "finished"


def test_a_checkpoint_is_read_once_to_verify_it_however_slowly(launch: Callable[..., Any], tmp_path: Path) -> None:
    """--continue: the others wait for rank 0 (h5py, which reads the vectors then, is not counted)."""
    assert launch(2, *settings("asgd"), "--out", "run").status == 0
    program = slow(tmp_path, 1.5 * DEADLINE, read=("state.h5",))
    more = settings("asgd", "training.epochs=2", "run.checkpoint_best=false", "run.checkpoint_samples=0")
    ended = launch(2, *more, "--continue", "run", program=(program,))
    assert ended.status == 0, ended.err
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["samples"] == 2876
    written = 1  # the manifest of the last checkpoint
    assert (tmp_path / "opened").read_text().splitlines() == ["state.h5"] * (1 + written)
