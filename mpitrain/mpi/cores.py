"""A rank's share of the cores of its node."""

from collections.abc import Mapping, Sequence, Set
from fractions import Fraction

LARGEST = 8192  # numbers of cores that Linux knows


def share(own: Set[int], ranks: Mapping[int, int] | Sequence[int]) -> int:
    """A rank's share of the cores `own` that it may use. Each core is divided among the ranks of the node that may use
    it, `ranks[core]` of them. Rounded down, and at least 1."""
    return max(int(sum(Fraction(1, ranks[core]) for core in own)), 1)
