"""What messages cost: latencies, bandwidths, a card for each node, and random delays, for tests."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2

import numpy as np

from mpitrain.mpi.links import Link

#: Bytes that a rank sends in a collective of n ranks, as a multiple of those of its array, by the algorithms that need
#: least: pipelined trees, recursive halving and doubling, rings (Thakur, Rabenseifner & Gropp 2005).
VOLUME = {
    "Iallreduce": 2.0,
    "Ibcast": 1.0,
    "Ireduce": 1.0,
    "Ireduce_scatter": 1.0,
    "Iallgather": 1.0,
    "Iallgatherv": 1.0,
}


USUAL = Link()


@dataclass(frozen=True)
class Network:
    """The links between two nodes and within one, by default the same; `message` seconds that each message costs
    besides. `jitter` is the mean of an exponentially distributed delay of every message, drawn from `seed`."""

    between: Link = USUAL
    within: Link | None = None
    message: float = 0.0
    jitter: float = 0.0
    seed: int = 0

    def link(self, same_node: bool) -> Link:
        """The link of two ranks."""
        return self.within if same_node and self.within is not None else self.between


class Wires:
    """When messages arrive. Each node's card sends one message after another, and takes one after another; within a
    node messages do not wait for each other."""

    def __init__(self, network: Network, nodes: Sequence[int]) -> None:
        self._network, self._nodes = network, nodes
        self._random = np.random.Generator(np.random.Philox(network.seed))
        self._sends, self._takes = dict.fromkeys(nodes, 0.0), dict.fromkeys(nodes, 0.0)  # until then

    def arrival(self, now: float, nbytes: int, source: int, target: int) -> float:
        """When so many bytes, sent now by one rank, are with the other."""
        here, there = self._nodes[source], self._nodes[target]
        link = self._network.link(here == there)
        takes, late = nbytes / link.bandwidth, link.latency + self._network.message + self._jitter()
        if here == there:
            return now + late + takes
        sent = max(now, self._sends[here]) + takes
        self._sends[here] = sent
        arrived = max(sent + late, self._takes[there] + takes)
        self._takes[there] = arrived
        return arrived

    def collective(self, kind: str, nbytes: int, ranks: Sequence[int]) -> float:
        """Seconds of a collective that all ranks have joined, whose greatest array has so many bytes: the rounds of a
        tree, and the bytes over the slowest link. The cards are not taken for busy."""
        if len(ranks) == 1:
            return 0.0
        link = self._network.link(len({self._nodes[rank] for rank in ranks}) == 1)
        rounds = ceil(log2(len(ranks))) * (link.latency + self._network.message)
        moved = VOLUME.get(kind, 0.0) * nbytes * (len(ranks) - 1) / len(ranks)
        return rounds + moved / link.bandwidth + self._jitter()

    def _jitter(self) -> float:
        return float(self._random.exponential(self._network.jitter)) if self._network.jitter else 0.0
