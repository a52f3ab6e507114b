"""What a program that was started has said at its end."""

import pytest

from mpitrain.api.launching import last_words

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
