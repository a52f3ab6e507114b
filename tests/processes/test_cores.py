"""A rank's share of the cores that it may use, which other ranks of its node may use, too."""

from collections import Counter
from collections.abc import Iterable
from itertools import chain

import pytest

from mpitrain.mpi.waiting import share_of_cores

ALL = range(8)


@pytest.mark.parametrize(
    ("masks", "shares"),
    [
        ([ALL] * 4, [2] * 4),  # nobody is bound
        ([range(4), range(4, 8)], [4, 4]),  # bound apart
        ([range(4), range(4), range(4, 8), range(4, 8)], [2] * 4),  # bound to sockets
        ([range(6), range(4, 8)], [5, 3]),  # two cores are both's
        ([range(6), range(6), range(4, 8)], [2, 2, 2]),  # 2 + 2/3 each, and 2 + 2/3
        ([ALL, [0]], [7, 1]),  # seven and a half, and half a core
        ([[3]] * 5, [1] * 5),
    ],
)
def test_shares(masks: list[Iterable[int]], shares: list[int]) -> None:
    ranks = Counter(chain(*masks))
    found = [share_of_cores(set(mask), ranks) for mask in masks]
    assert found == shares
