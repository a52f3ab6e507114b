"""The file that describes a cluster to `mpitrain simulate`."""

from pathlib import Path
from typing import Annotated

import msgspec

from mpitrain.algorithms.table import Count
from mpitrain.config import Section, read_toml, readable
from mpitrain.errors import BadInput
from mpitrain.simulation.network import Link, Network

Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e6)]
Bandwidth = Annotated[float, msgspec.Meta(ge=1, le=1e15)]


class Gradient(Section, frozen=True):
    """Seconds of a minibatch's gradient on a core of its own: a line in the minibatch's samples."""

    seconds: Seconds
    seconds_per_sample: Seconds


class Connection(Section, frozen=True):
    """Seconds of a message's first byte, and bytes a second."""

    latency: Seconds
    bandwidth: Bandwidth

    def link(self) -> Link:
        """For the network."""
        return Link(self.latency, self.bandwidth)


class Cluster(Section, frozen=True):
    """Equal nodes. Ranks fill one node after another; those that share cores slow each other; each node has one card.

    `message_seconds` is what a message costs besides.
    """

    nodes: Count
    ranks_per_node: Count
    cores_per_node: Count
    gradient: Gradient
    within_node: Connection
    between_nodes: Connection
    message_seconds: Seconds = 0.0

    @property
    def places(self) -> int:
        """Ranks that it has room for."""
        return self.nodes * self.ranks_per_node

    def nodes_of(self, ranks: int) -> list[int]:
        """The node of each rank."""
        return [rank // self.ranks_per_node for rank in range(ranks)]

    def network(self) -> Network:
        """Its links."""
        return Network(self.between_nodes.link(), self.within_node.link(), self.message_seconds)

    def seconds(self, rank: int, samples: int) -> float:
        """A gradient's, on any rank."""
        return self.gradient.seconds + self.gradient.seconds_per_sample * samples


def read(path: Path) -> Cluster:
    """The cluster that a file describes. Raises BadInput naming file and key."""
    try:
        return msgspec.convert(read_toml(path), Cluster)
    except msgspec.ValidationError as error:
        raise BadInput(f"{path}: {readable(error)}") from error
