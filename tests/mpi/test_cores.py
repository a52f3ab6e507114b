"""A rank's share of the cores that it may use, which other ranks of its node may use, too; its threads."""

import os
from collections.abc import Iterable

import pytest

from mpitrain.cli.setup import threads
from mpitrain.mpi import Transport
from mpitrain.mpi.cores import share

ALL = range(8)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("bound", [True, False])
def test_a_rank_that_is_bound_has_its_cores_to_itself(
    monkeypatch: pytest.MonkeyPatch, transport: Transport, bound: bool
) -> None:
    """Whoever bound it: the launcher, taskset, a cpuset. What the user says goes before."""
    rank, size = transport.rank, transport.size
    mine = range(3 * rank, 3 * rank + 3) if bound else range(3 * size)
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(mine))
    started = Transport(deadline=30.0)
    assert threads(0, started) == started.cores == 3 and started.node_cores == 3 * size
    assert threads(5, started) == 5
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "2")
    assert threads(0, started) == 2


@pytest.mark.parametrize(
    ("masks", "shares"),
    [
        ([ALL] * 4, [2] * 4),  # nobody is bound
        ([range(4), range(4, 8)], [4, 4]),  # bound apart
        ([range(4), range(4), range(4, 8), range(4, 8)], [2] * 4),  # bound to sockets
        ([range(6), range(4, 8)], [5, 3]),  # two cores are both's
        ([range(6), range(6), range(4, 8)], [2, 2, 2]),  # 2 + 2/3 each, and 2 + 2/3
        ([ALL, [0]], [7, 1]),  # seven and a half, and half a core
        ([[3]] * 5, [1] * 5),
    ],
)
def test_shares(masks: list[Iterable[int]], shares: list[int]) -> None:
    found = [share(set(mask), [set(each) for each in masks]) for mask in masks]
    assert found == shares
