"""One minibatch."""

from typing import NamedTuple

from mpitrain.flat import Array


class Batch(NamedTuple):
    """`inputs` [n, *shape] in the run's dtype, `targets` int32 [n]."""

    inputs: Array
    targets: Array
