"""What a process knows about its start before MPI and the configuration: from its launcher and the command line."""

import argparse
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import TypeAlias

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # where commands are added
DEADLINE = 300.0  # seconds; the default of run.deadline
#: The number of a rank in its job: Open MPI, MPICH and Intel MPI, PMIx, Slurm. Slurm's comes last: within a batch
#: script it is 0, and mpirun passes that on to all ranks.
RANK = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")
#: The same on its node: Open MPI, MPICH and Intel MPI, Cray, Slurm.
LOCAL_RANK = (
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "PMI_LOCAL_RANK",
    "PALS_LOCAL_RANKID",
    "SLURM_LOCALID",
)


def rank_of(environment: Mapping[str, str], otherwise: int) -> int:
    """A process's number in its job; `otherwise` if no launcher says it."""
    return _number(environment, RANK, otherwise)


def local_rank_of(environment: Mapping[str, str], otherwise: int) -> int:
    """A process's number on its node; `otherwise` if no launcher says it."""
    return _number(environment, LOCAL_RANK, otherwise)


def _number(environment: Mapping[str, str], names: Sequence[str], otherwise: int) -> int:
    return next((int(environment[name]) for name in names if environment.get(name, "").isdigit()), otherwise)


def first_deadline(words: Sequence[str]) -> float:
    """run.deadline as given by one of these words, used until the configuration is read, which then reports errors."""
    told = [
        value
        for key, _, value in (word.removeprefix("--set=").partition("=") for word in words)
        if key.strip() == "run.deadline"
    ]
    try:
        deadline = float(told[-1])
    except (IndexError, ValueError):
        deadline = 0.0
    return deadline if 0 < deadline < inf else DEADLINE


def stopped_ranks() -> list[int]:
    """The ranks on this node that are stopped, as by SIGSTOP, among those that this process's launcher has started."""
    found = set[int]()
    for process in os.listdir("/proc"):
        with suppress(OSError, ValueError):  # it has ended, or is no process
            state, parent = Path("/proc", process, "stat").read_text().rpartition(")")[2].split()[:2]
            if state in "tT" and int(parent) == os.getppid():
                words = Path("/proc", process, "environ").read_text(errors="replace").split("\0")
                found.add(rank_of(dict(word.split("=", 1) for word in words if "=" in word), -1))
    return sorted(found - {-1})
