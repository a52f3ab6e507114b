"""What the tests share: the MPI library in the header, and launches of the program under an outside deadline."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

MPIRUN = Path(sys.executable).with_name("mpirun")


def pytest_report_header() -> str:
    """Name the MPI library and this rank, when the tests run under mpirun."""
    if "--with-mpi" not in sys.argv:
        return "MPI: not loaded"
    from mpi4py import MPI

    vendor = MPI.Get_library_version().splitlines()[0]
    return f"MPI: {vendor}, rank {MPI.COMM_WORLD.rank} of {MPI.COMM_WORLD.size}"


@dataclass(frozen=True)
class Ended:
    """How a launched program ended."""

    status: int
    out: str
    err: str


@pytest.fixture
def launch(tmp_path: Path) -> Callable[..., Ended]:
    """Run `mpirun -n RANKS python -m mpitrain ARGUMENTS` in a temporary folder; fail when it takes too long."""
    if not MPIRUN.exists():
        pytest.skip("this environment has no mpirun of its own")

    def run(ranks: int, *arguments: str, deadline: float = 120, program: tuple[str, ...] = ("-m", "mpitrain")) -> Ended:
        command = [str(MPIRUN), "-n", str(ranks), sys.executable, *program, *arguments]
        process = start(command, tmp_path)
        return finish(process, deadline)

    return run


def start(command: list[str], folder: Path) -> "subprocess.Popen[str]":
    """Start a command in a process group of its own."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )


def finish(process: "subprocess.Popen[str]", deadline: float) -> Ended:
    """Wait for the end; kill the group and fail the test after the deadline."""
    try:
        out, err = process.communicate(timeout=deadline)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        pytest.fail(f"no end within {deadline} s\n{out}\n{err}")
    return Ended(process.returncode, out, err)
