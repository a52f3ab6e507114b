"""Which ranks act as one worker (`run.team`), and how many workers that makes."""

from collections.abc import Sequence
from typing import Literal

from mpitrain.config import Config
from mpitrain.errors import BadInput
from mpitrain.mpi import Transport


def divide(size: int | Literal["node"], node_leaders: Sequence[int]) -> list[list[int]]:
    """The ranks of each team, its leader first: so many neighbours, or those of each node.

    `node_leaders` are, for each rank, the first rank of its node. Raises BadInput naming `run.team` for a number that
    does not divide the number of ranks.
    """
    ranks = len(node_leaders)
    if size == "node":
        leaders = sorted(set(node_leaders))
        return [[rank for rank in range(ranks) if node_leaders[rank] == leader] for leader in leaders]
    if ranks % size:
        raise BadInput(f"run.team = {size}: {ranks} rank{'s' * (ranks > 1)} cannot be divided into teams of {size}")
    return [list(range(first, first + size)) for first in range(0, ranks, size)]


def workers_of(config: Config, transport: Transport) -> int:
    """How many workers the ranks are: each team is one, and each other rank that computes gradients.

    Raises BadInput naming `run.team` if the ranks cannot be divided.
    """
    return config.algorithm.workers(len(divide(config.run.team, transport.node_leaders)))
