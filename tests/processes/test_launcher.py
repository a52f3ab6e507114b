"""What a launcher has said to a process, where MPI cannot be started with it."""

import os
import subprocess
import sys

import pytest
from mpi4py import MPI


@pytest.mark.skipif(MPI.get_vendor()[0] != "MPICH", reason="its launcher's connection is a descriptor")
@pytest.mark.parametrize("words", [("info",), ("launch", "-n", "2")])
def test_a_connection_that_was_not_passed_on_is_one_line(words: tuple[str, ...]) -> None:
    """As in what a Python program under mpirun starts by subprocess: MPI_Init printed its stack, and ended it."""
    environment = {**os.environ, "PMI_FD": "987", "PMI_RANK": "0", "PMI_SIZE": "2"}
    command = [sys.executable, "-m", "mpitrain", *words]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2 and ended.stdout == ""
    assert ended.stderr.startswith("mpitrain: PMI_FD = 987: closed") and len(ended.stderr.splitlines()) == 1
