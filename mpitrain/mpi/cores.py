"""The cores of a node, and each of its ranks' share of them."""

from collections import Counter
from collections.abc import Sequence, Set
from fractions import Fraction
from itertools import chain

import numpy as np

from mpitrain.flat import Array

LARGEST = 8192  # numbers of cores that Linux knows


def share(own: Set[int], masks: Sequence[Set[int]]) -> int:
    """Of the cores `own` that a rank may use, its share: each core is divided among the ranks of the node, with these
    `masks`, that may use it. Rounded down, and at least 1."""
    ranks = Counter(chain.from_iterable(masks))
    return max(int(sum(Fraction(1, ranks[core]) for core in own)), 1)


def as_bits(cores: Set[int]) -> Array:
    """A mask as bytes of one length."""
    bits = np.zeros(LARGEST, np.uint8)
    bits[list(cores)] = 1
    return np.packbits(bits)


def from_bits(mask: Array) -> Set[int]:
    """The same back."""
    return set(np.flatnonzero(np.unpackbits(mask)).tolist())
