"""What a launcher has said to a process, where MPI cannot be started with it."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from mpi4py import MPI

from mpitrain.mpi.process import PROCESS


@pytest.mark.skipif(MPI.get_vendor()[0] != "MPICH", reason="its launcher's connection is a descriptor")
@pytest.mark.parametrize("words", [("info",), ("launch", "-n", "2")])
def test_a_connection_that_was_not_passed_on_is_one_line(words: tuple[str, ...]) -> None:
    """As in what a Python program under mpirun starts by subprocess: MPI_Init printed its stack, and ended it."""
    environment = {**os.environ, "PMI_FD": "987", "PMI_RANK": "0", "PMI_SIZE": "2"}
    command = [sys.executable, "-m", "mpitrain", *words]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2 and ended.stdout == ""
    assert ended.stderr.startswith("mpitrain: PMI_FD = 987: closed") and len(ended.stderr.splitlines()) == 1


@pytest.mark.skipif(MPI.get_vendor()[0] != "MPICH", reason="its launcher's connection is a descriptor")
def test_a_start_that_has_failed_fails_again() -> None:
    """In a program that has caught the first failure, as a notebook has: MPI would end the process without a word."""
    lines = (
        "from mpitrain.errors import BadInput",
        "from mpitrain.mpi import Transport",
        "for _ in range(2):",
        "    try: Transport()",
        "    except BadInput as error: print(error)",
    )
    environment = {**os.environ, "PMI_FD": "987", "PMI_RANK": "0", "PMI_SIZE": "2"}
    command = [sys.executable, "-c", "\n".join(lines)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    first, second = ended.stdout.splitlines()
    assert (ended.returncode, ended.stderr) == (0, "") and first == second and first.startswith("PMI_FD = 987: closed")


def test_mpi_is_started_by_what_uses_it() -> None:
    """Not by an import of this program; by the Python interface at once, since a user's program may call MPI then."""
    program = "import mpitrain.api.train, mpitrain.mpi as mpi; before = mpi.MPI.Is_initialized()\n"
    program += "from mpitrain import load; print(before, mpi.MPI.Is_initialized())"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (ended.stdout, ended.stderr) == ("False True\n", "")


@pytest.mark.parametrize(
    ("ranks", "rank", "size", "wanted"),
    [("16", "0", 64, "99"), ("11", "0", 64, "72"), ("10", "0", 64, ""), ("16", "1", 64, ""), ("", "0", 0, "")],
)
def test_little_shared_memory_is_said_before_mpi_starts(
    ranks: str, rank: str, size: int, wanted: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of a container, where MPICH's ranks end with a bus error in MPI_Init: of 64 MiB, 11 some of the time."""
    monkeypatch.setenv("MPI_LOCALNRANKS", ranks)
    monkeypatch.setenv("MPI_LOCALRANKID", rank)
    monkeypatch.setattr("os.statvfs", lambda path: SimpleNamespace(f_blocks=size, f_frsize=1 << 20))
    PROCESS.warn_of_little_memory()
    said = capsys.readouterr().err
    assert f"warning: /dev/shm has 67 MB, MPI wants {wanted} MB" in said if wanted else not said
