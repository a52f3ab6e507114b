"""A minibatch, and what it is gathered from."""

from typing import NamedTuple, Protocol

from mpitrain.flat import Array

Place = tuple[int, int] | None  #: epoch of a minibatch's first sample and its position in the order; None in evaluation


class Batch(NamedTuple):
    """`inputs` [n, *shape] in the run's dtype, `targets` int32 [n]."""

    inputs: Array
    targets: Array


class Samples(Protocol):
    """A corpus or a selection of its samples: inputs of `shape` with targets in range(`classes`)."""

    part: str
    samples: int
    shape: tuple[int, ...]
    classes: int
    in_memory: bool

    def gather(self, indices: Array, out: Batch, place: Place = None) -> Batch:
        """Fill `out` (inputs [n, *shape], targets [n]) with the samples of `indices` int64 [n], in that order."""
