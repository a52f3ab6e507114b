"""Teams: ranks that act as one, such as those of a node. One of them leads; the others work only for the leader."""

import itertools
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from mpitrain.errors import BadInput
from mpitrain.flat import Array
from mpitrain.mpi.collectives import CountedCollectives
from mpitrain.mpi.communicator import Request
from mpitrain.mpi.node_memory import NodeMemory
from mpitrain.mpi.transport import Transport
from mpitrain.mpi.waiting import Traffic


class Team(CountedCollectives):
    """This rank's team: collectives among its ranks, in which the leader is rank 0.

    `ranks` are their numbers in the job. What they exchange counts in `traffic`, and in the transport's too. `rows`:
    a vector for each of them in memory that they share, if they do. Collective over all ranks of the transport.
    """

    rows: list[Array] | None = None

    def __init__(self, transport: Transport, teams: Sequence[Sequence[int]]) -> None:
        number = next(number for number, team in enumerate(teams) if transport.rank in team)
        self.all, self.ranks, self._transport = teams, list(teams[number]), transport
        self.comm = transport.split(number)
        self.rank, self.size = self.comm.rank, len(self.ranks)
        self.leader, self.leads = self.ranks[0], transport.rank == self.ranks[0]
        self.followers = self.ranks[1:]
        self.traffic = Traffic(whole=transport.traffic)
        self.numbers = itertools.count()  # a counter from which all of the team draw the same numbers

    def share(self, size: int, dtype: np.dtype) -> None:
        """Let the ranks have `rows` of this size, if each team is on one node whose ranks share memory. Collective over
        all ranks."""
        leaders = self._transport.node_leaders
        if any(leaders[rank] != leaders[team[0]] for team in self.all for rank in team):
            return
        with suppress(BadInput):  # they have messages
            there = [rank for rank, leader in enumerate(leaders) if leader == leaders[self.leader]]
            memory = NodeMemory(self._transport).array((len(there), size), dtype)
            self.rows = [memory[there.index(rank)] for rank in self.ranks]

    def wait(self, request: Request, what: str) -> None:
        """Wait for a request that needs the team. Raises Overdue naming those of its ranks that are silent."""
        others = [rank for rank in self.ranks if rank != self._transport.rank]
        self._transport.wait(request, what, others)

    def post(self, tag: int, message: bytes) -> None:
        """Send a small message to each follower."""
        for rank in self.followers:
            self._transport.post(rank, tag, message)
            self.traffic.bytes_sent += len(message)
            self.traffic.messages_sent += 1
