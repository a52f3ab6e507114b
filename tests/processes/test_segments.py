"""Shared memory that killed jobs leave: the next start removes it, and nothing else."""

import os
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path

import pytest

from mpitrain.mpi import segments
from mpitrain.start import LOCAL_RANK

MPIRUN = Path(sys.executable).with_name("mpirun")
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
    for name in LOCAL_RANK:
        monkeypatch.delenv(name, raising=False)
    return Path(f"{segments.MPICH}test_{uuid.uuid4().hex}")


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


#: A rank that notes which named segments it maps once all have exchanged messages, and lives on.
RANK = """
import os, sys, time
from pathlib import Path
from mpitrain.mpi import Transport
transport = Transport(deadline=60.0)
transport.gather_texts("all map what others made", "the others")
with open("/proc/self/maps") as lines:
    paths = {line.split(maxsplit=5)[-1].strip() for line in lines if "/dev/shm/" in line}
new = Path(f"{transport.rank}.new")
new.write_text("\\n".join([str(os.getpid()), *(path for path in paths if os.path.exists(path))]))
new.rename(f"{transport.rank}.mapped")
time.sleep(600)
"""
RANKS, PATIENCE = 3, 120.0


@pytest.mark.skipif(not MPIRUN.exists(), reason="this environment has no mpirun of its own")
def test_a_job_that_was_killed_with_its_launcher_leaves_nothing_for_long(segment: Path, tmp_path: Path) -> None:
    """Neither MPICH's segment nor Open MPI's, one for each rank; while the job lives, a start removes nothing."""
    command = [str(MPIRUN), "-n", str(RANKS), sys.executable, "-c", RANK]
    places = [tmp_path / f"{rank}.mapped" for rank in range(RANKS)]
    with subprocess.Popen(command, cwd=tmp_path, start_new_session=True) as launcher:
        try:
            end = time.monotonic() + PATIENCE
            while not all(place.exists() for place in places) and launcher.poll() is None and time.monotonic() < end:
                time.sleep(0.05)
            pids, made = zip(*((int(told[0]), set(told[1:])) for told in map(lines, places)), strict=True)
            left = set[str]().union(*made)
            next_start()
            assert left and all(map(os.path.exists, left))
        finally:
            launcher.kill()
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    while any(map(alive, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    assert any(map(os.path.exists, left)), "nothing was left to remove"
    next_start()
    assert not any(map(os.path.exists, left))


def test_a_process_without_a_launcher_leaves_nothing(segment: Path, tmp_path: Path) -> None:
    """Open MPI leaves the removal to its launcher's helper, which there is none of."""
    program = "from mpitrain.mpi.process import *; PROCESS.start(); print(*segments.mapped(), sep='\\n')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout.strip() and not any(map(os.path.exists, done.stdout.split())) and records(tmp_path) == 0


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def next_start() -> None:
    """The first rank of a node starts and ends."""
    started = [sys.executable, "-c", "from mpitrain.mpi.process import PROCESS; PROCESS.start()"]
    subprocess.run(started, env={**os.environ, "MPI_LOCALRANKID": "0"}, check=True, timeout=PATIENCE)


def alive(pid: int) -> bool:
    """Whether there is such a process that is not only waiting to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
