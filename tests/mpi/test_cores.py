"""A rank's threads: its share of the cores that it may use."""

import os

import pytest

from mpitrain.mpi import Transport
from mpitrain.start import THREADS


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("bound", [True, False])
def test_a_rank_that_is_bound_has_its_cores_to_itself(
    monkeypatch: pytest.MonkeyPatch, transport: Transport, bound: bool
) -> None:
    """Whoever bound it: the launcher, taskset, a cpuset. What the user says goes before."""
    rank, size = transport.rank, transport.size
    mine = range(3 * rank, 3 * rank + 3) if bound else range(3 * size)
    for name in THREADS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(mine))
    started = Transport(deadline=30.0)
    assert started.threads(0) == started.cores == 3 and started.node_cores == 3 * size
    assert started.threads(5) == 5
    monkeypatch.setenv("OMP_NUM_THREADS", "4,2")  # for nested regions, which no library here has
    assert started.threads(0) == 3
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "SLURM_CPUS_PER_TASK")  # each goes before those to its left
    for number, name in enumerate(names, start=6):
        monkeypatch.setenv(name, str(number))
        assert started.threads(0) == number and started.threads(5) == 5
