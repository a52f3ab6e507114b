"""Shared memory that killed jobs leave: the next start removes it, and nothing else."""

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from mpitrain.mpi import segments

pytestmark = pytest.mark.skipif(not Path(segments.MEMORY).is_dir(), reason="this system has no /dev/shm")

#: Maps a segment under MPICH's name, notes it, and is killed or waits.
MAPPING = """
import mmap, os, signal, sys
from mpitrain.mpi import segments
with open(sys.argv[1], "w+b") as file:
    file.truncate(4096)
    kept = mmap.mmap(file.fileno(), 4096)
segments.note()
print("noted", flush=True)
if sys.argv[2] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
sys.stdin.read()
"""


@pytest.fixture
def segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A name that nobody has, and a home for records."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for name in segments.LOCAL_RANK:
        monkeypatch.delenv(name, raising=False)
    return Path(f"{segments.PREFIX}test_{uuid.uuid4().hex}")


def mapping(path: Path, how: str) -> "subprocess.Popen[str]":
    """A process that has noted a segment, and that lives until its input ends."""
    command = [sys.executable, "-c", MAPPING, str(path), how]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "noted\n"
    return process


def records(tmp_path: Path) -> int:
    """How many there are."""
    return sum(path.is_file() for path in tmp_path.rglob("*"))


def test_what_a_killed_job_left_is_removed_and_forgotten(tmp_path: Path, segment: Path) -> None:
    """By the next start; a second one finds nothing to do."""
    mapping(segment, "killed").wait(60)
    assert segment.exists() and records(tmp_path) == 1
    for _ in range(2):
        segments.note()
        assert not segment.exists() and records(tmp_path) == bool(segments.mapped())


def test_nothing_is_removed_that_is_mapped_or_not_noted_or_another(tmp_path: Path, segment: Path) -> None:
    """A job that lives; a segment of somebody who notes none; a name that came again; a record that is no record."""
    living, foreign = mapping(segment, "lives"), segment.with_name(f"{segment.name}_foreign")
    again = segment.with_name(f"{segment.name}_again")
    try:
        foreign.write_bytes(bytes(4096))
        mapping(again, "killed").wait(60)
        os.link(again, again.with_name(f"{again.name}_kept"))  # its inode stays taken
        again.unlink()
        again.write_bytes(bytes(4096))
        (segments._own().parent / f"{segments._place()}1").write_text(f"1:2:3 /etc/passwd\nrubbish\n{'x' * 9}")
        segments.note()
        assert segment.exists() and foreign.exists() and again.exists()
        living.kill()
        living.wait(60)
        segments.note()
        assert not segment.exists() and foreign.exists() and again.exists()
    finally:
        living.kill()
        for path in (segment, *segment.parent.glob(f"{segment.name}_*")):
            path.unlink(missing_ok=True)


def test_a_home_that_cannot_be_used_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one that is a file."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "file"))
    segments.note()
    segments.forget()
    assert os.listdir(tmp_path) == ["file"]
