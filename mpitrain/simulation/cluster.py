"""The file that describes a cluster to `mpitrain simulate`.

Those of the five papers, by name, are in clusters/: each line says where in its paper it stands, or is assumed.
"""

from collections import Counter, defaultdict
from math import inf
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from mpitrain.config import read_toml, readable
from mpitrain.errors import BadInput
from mpitrain.keys import Count, Number, Section
from mpitrain.models.model import Model
from mpitrain.mpi.links import Link, Seconds
from mpitrain.sampling.rng import stream
from mpitrain.simulation.job import Job
from mpitrain.simulation.messages import ClusterNetwork

Factor = Annotated[float, msgspec.Meta(gt=0, le=1e6)]


class GradientCost(Section, frozen=True):
    """Seconds of a minibatch's gradient on a core of its own: a line in the minibatch's samples, times a factor.

    `spread`: equidistant quantiles of the factor, from the least to the greatest, between which it is drawn; by default
    it is 1.
    """

    seconds: Seconds
    seconds_per_sample: Seconds
    spread: Annotated[list[Factor], msgspec.Meta(max_length=1001)] = msgspec.field(default_factory=list)

    def __post_init__(self) -> None:
        if self.spread != sorted(self.spread):
            raise ValueError("`spread` does not ascend")

    def factor(self, *key: int) -> float:
        """The factor of one gradient, drawn anew for each key."""
        if not self.spread:
            return 1.0
        at = stream(0, "gradient", *key).random() * (len(self.spread) - 1)
        return float(np.interp(at, np.arange(len(self.spread)), self.spread))


class MeasuredNetwork(Section, frozen=True):
    """The network of the file's gradients. `multiply_adds`: of one sample; 0 where they are not known."""

    name: str
    parameters: Count
    multiply_adds: Annotated[int, msgspec.Meta(ge=0)] = 0


class PerByte(Section, frozen=True):
    """How long one kind of work takes for each byte, on a core that no other rank uses."""

    seconds: Annotated[float, msgspec.Meta(ge=0, le=1.0)] = msgspec.field(default=0.0, name="seconds_per_byte")


class PerSample(Section, frozen=True):
    """Seconds of work on each sample, on a core of its own."""

    seconds: Seconds = msgspec.field(default=0.0, name="seconds_per_sample")


class Slow(Section, frozen=True):
    """A node whose work takes `factor` times as long as that of the others."""

    node: Number
    factor: Factor


class Fault(Section, frozen=True):
    """A rank that stands still `at` this many seconds after the start, for so long; by default for good: it dies."""

    rank: Number
    at: Seconds
    lasts: Annotated[float, msgspec.Meta(gt=0, le=1e6)] | None = None


class Cluster(Section, frozen=True):
    """Equal nodes. Ranks fill one node after another; those that share cores slow each other; each node has one card.

    `message_seconds` is what a message costs besides. Kinds of work on vectors are `update`, by a rule; `copy`, which
    copies or checks; and `delta`, which chooses the entries of a sparse delta from a residual, and takes as long as an
    update where nothing is said. `entries` is coding or decoding these, 4 bytes each, and applying them to weights.
    """

    nodes: Count
    ranks_per_node: Count
    cores_per_node: Count
    gradient: GradientCost
    within_node: Link
    between_nodes: Link
    message_seconds: Seconds = 0.0
    update: PerByte = PerByte()
    copy: PerByte = PerByte()
    delta: PerByte = PerByte()
    entries: PerByte = PerByte()
    evaluation: PerSample = PerSample()
    slow: list[Slow] = msgspec.field(default_factory=list)
    faults: list[Fault] = msgspec.field(default_factory=list)
    measured: MeasuredNetwork | None = msgspec.field(default=None, name="network")

    @property
    def places(self) -> int:
        """How many ranks the cluster has room for."""
        return self.nodes * self.ranks_per_node

    def job(self, ranks: int) -> Job[int]:
        """The first `ranks` ranks, to run a program once."""
        numbers, stops = Counter[int](), defaultdict[int, list[tuple[float, float]]](list)
        for each in self.faults:
            stops[each.rank].append((each.at, inf if each.lasts is None else each.at + each.lasts))

        def seconds(rank: int, samples: float) -> float:
            numbers[rank] += 1
            factor = self.gradient.factor(rank, numbers[rank]) * self._slowed(rank)
            return factor * (self.gradient.seconds + self.gradient.seconds_per_sample * samples)

        network = ClusterNetwork(self.between_nodes, self.within_node, self.message_seconds)
        nodes = [rank // self.ranks_per_node for rank in range(ranks)]
        return Job(ranks, network, nodes, seconds, self.cores_per_node, stops=stops, work=self.work)

    def work(self, rank: int, kind: str, amount: float) -> float:
        """The seconds that this amount of a kind of work takes a rank."""
        like = {"check": "copy"} if self.delta.seconds else {"check": "copy", "delta": "update"}
        cost: PerByte | PerSample = getattr(self, like.get(kind, kind))
        return cost.seconds * amount * self._slowed(rank)

    def scale(self, model: Model, path: Path) -> tuple[float, str]:
        """How many times as long a sample takes with this model as with the file's network, and a line that says so.

        Raises BadInput where it is another network and that is not known.
        """
        own, work = self.measured, model.multiply_adds
        # Multiply-adds are not known (0) for a module, also if the same network was measured as layers, or vice versa.
        if own is None or (own.parameters == model.layout.size and len({own.multiply_adds, work, 0}) < 3):
            return 1.0, ""
        other = f"not of {model.name} ({model.layout.size:,})"
        said = f"{path}: its gradients are of {own.name} ({own.parameters:,} parameters), {other}"
        if not own.multiply_adds or not work:
            then = "calibrate with it, or delete [network] in a copy"
            raise BadInput(f"{said}, and how they compare is not known: {then}")
        ratio = work / own.multiply_adds
        return ratio, f"{said}: a sample is taken to last {ratio:.3g} times as long, by the ratio of multiply-adds"

    def _slowed(self, rank: int) -> float:
        """The factor by which a rank's node is slow."""
        return {each.node: each.factor for each in self.slow}.get(rank // self.ranks_per_node, 1.0)


def read(path: Path) -> Cluster:
    """The cluster that a file describes. Raises BadInput naming file and key."""
    try:
        found = msgspec.convert(read_toml(path), Cluster)
    except msgspec.ValidationError as error:
        raise BadInput(f"{path}: {readable(error)}") from error
    if odd := [each.node for each in found.slow if each.node >= found.nodes]:
        raise BadInput(f"{path}: slow: there is no node {odd[0]}")
    if odd := [node for node, times in Counter(each.node for each in found.slow).items() if times > 1]:
        raise BadInput(f"{path}: slow: node {odd[0]} stands there twice")
    if odd := [each.rank for each in found.faults if each.rank >= found.places]:
        raise BadInput(f"{path}: faults: there is no rank {odd[0]}")
    return found
