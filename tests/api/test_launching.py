"""How ranks are started, and what a program that was started has said at its end."""

import os
import subprocess

import pytest

from mpitrain.api import launching
from mpitrain.api.launching import Heard, last_words, on_ranks, start

MPICH = """
=   CLEANING UP REMAINING PROCESSES
===================================================================================
YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)
This typically refers to a problem with your application.
Please see the FAQ page for debugging suggestions
"""
OPEN_MPI = """
--------------------------------------------------------------------------
prterun noticed that process rank 1 with PID 1049 on node n exited on
signal 9 (Killed).
--------------------------------------------------------------------------
"""


@pytest.mark.parametrize(
    ("output", "status", "said"),
    [
        ("epoch 3.00\nruns/one\n", 75, "stopped by a signal"),
        ("mpitrain: run.least_ranks is 2; --resume x continues\n", 75, "run.least_ranks is 2; --resume x continues"),
        (f"epoch 3.00\n{MPICH}", 9, "a rank was ended by a signal: Killed (signal 9)"),
        (f"mpitrain: warning: slow\n{OPEN_MPI}", 137, "a rank was ended by a signal: 9 (Killed)"),
        (f"mpitrain: waited 300 s for rank 1\n{MPICH}", 1, "waited 300 s for rank 1"),
        ("epoch 3.00\n", -9, "ended by signal 9"),
        ("srun: error: n: task 1: Killed\n----\n", 137, "srun: error: n: task 1: Killed"),
        ("", 3, "exit status 3"),
    ],
)
def test_why_a_program_ended(output: str, status: int, said: str) -> None:
    """Neither what it printed before by the way, nor how a launcher's message ends."""
    assert last_words(output.encode(), status) == said


TASK = "srun: error: node-a: task 1: Killed"
SILENT = "mpitrain: rank 0: waited 300 s for ranks 1, 3 (a heartbeat); run.deadline sets the seconds"


@pytest.mark.parametrize(
    ("output", "heterogeneous", "lost"),
    [
        (TASK, False, [1]),
        (TASK, True, []),
        (f"srun: error: node-b: task 2: Exited with exit code 14\n{TASK}", False, []),
        (f"{TASK}\n{SILENT}", True, [1, 3]),
        (OPEN_MPI, False, [1]),
        (MPICH, False, []),
    ],
)
def test_the_ranks_that_were_lost(output: str, heterogeneous: bool, lost: list[int]) -> None:
    """Slurm numbers the tasks of each component of a heterogeneous job by themselves, and kills those of other nodes
    when a node is lost."""
    process = start(["sh", "-c", 'printf "%s\n" "$0" >&2', output], errors=subprocess.PIPE)
    heard = Heard(process)
    assert process.wait() == 0 and heard.lost(heterogeneous) == lost


def test_more_ranks_than_cores_stay_on_their_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open MPI 5 started those of all hosts on the first one, in a job of Slurm as with `--host`."""
    monkeypatch.setattr(launching, "is_open_mpi", lambda program: True)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    assert on_ranks("mpirun -n {ranks}", 4, ["a"]) == ["mpirun", "-n", "4", "a"]
    for environment, policy in (({}, "slot"), ({launching.PLACEMENT: "ppr:2:node"}, "ppr:2:node")):
        monkeypatch.setattr(os, "environ", environment)
        by_slot = ["env", f"PRTE_MCA_rmaps_default_mapping_policy={policy}"]
        assert on_ranks("mpirun -n {ranks}", 8, ["a"]) == [*by_slot, "mpirun", "-n", "8", "--oversubscribe", "a"]
