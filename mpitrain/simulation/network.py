"""What messages cost: latencies, bandwidths, a card for each node, and random delays, for tests."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mpitrain.mpi.links import USUAL, Link
from mpitrain.simulation.scheduler import Scheduler


@dataclass(frozen=True)
class ClusterNetwork:
    """The links between two nodes and within one, by default the same; each message costs `message` seconds more.
    `jitter` is the mean of an exponentially distributed delay of every message between two ranks, and of every
    rank's part in a collective, drawn from `seed`."""

    between: Link = USUAL
    within: Link | None = None
    message: float = 0.0
    jitter: float = 0.0
    seed: int = 0

    def link(self, same_node: bool) -> Link:
        """The link of two ranks."""
        return self.within if same_node and self.within is not None else self.between


class Wires:
    """Computes when messages arrive, for all communicators of a job with its ranks on `nodes`. Each node's card sends
    one message after another, and takes one after another; within a node messages do not wait for each other."""

    def __init__(self, scheduler: Scheduler, network: ClusterNetwork, nodes: Sequence[int]) -> None:
        self.scheduler, self._network, self.nodes = scheduler, network, nodes
        self._random = np.random.Generator(np.random.Philox(network.seed))
        self._sends, self._takes = dict.fromkeys(nodes, 0.0), dict.fromkeys(nodes, 0.0)  # until when a card is busy
        self.busy = dict.fromkeys([(node, way) for node in nodes for way in ("sends", "takes")], 0.0)  # seconds so far

    def send(self, nbytes: int, source: int, target: int, action: Callable[[], None], not_before: float = 0.0) -> float:
        """Call `action` when this many bytes of one rank have arrived at the other; returns when that is."""
        _, arrival = self.passage(self.scheduler.now, nbytes, source, target)
        time = max(arrival + self.jitter(), not_before)
        self.scheduler.at(time, action)
        return time

    def passage(self, now: float, nbytes: int, source: int, target: int) -> tuple[float, float]:
        """When this many bytes, sent `now` by one rank, have left it, and when they have arrived at the other."""
        here, there = self.nodes[source], self.nodes[target]
        link = self._network.link(here == there)
        takes, late = nbytes / link.bandwidth, link.latency + self._network.message
        if here == there:
            return now + takes, now + late + takes
        self.busy[here, "sends"] += takes
        self.busy[there, "takes"] += takes
        left = self._sends[here] = max(now, self._sends[here]) + takes
        arrived = self._takes[there] = max(left + late, self._takes[there] + takes)
        return left, arrived

    def jitter(self) -> float:
        """A random delay in seconds."""
        return float(self._random.exponential(self._network.jitter)) if self._network.jitter else 0.0
