"""The order of work, as tables written by hand."""

import pytest

from mpitrain.flat import share
from mpitrain.sampling.rounds import FullyConnectedRound, rounds

# (scheme, group): for 3 ranks of 3 examples, each round as {rank: examples}.
TABLES = {
    ("a", 0): [{0: "012", 1: "345", 2: "678"}],
    ("b", 0): [{0: "012"}, {1: "345"}, {2: "678"}],
    ("c", 0): [{0: "0", 1: "3", 2: "6"}, {0: "1", 1: "4", 2: "7"}, {0: "2", 1: "5", 2: "8"}],
    ("c", 1): [{0: "012"}, {1: "345"}, {2: "678"}],
    ("c", 2): [{0: "0", 1: "34"}, {0: "12", 1: "5"}, {2: "678"}],
    ("c", 3): [{0: "0", 1: "3", 2: "6"}, {0: "1", 1: "4", 2: "7"}, {0: "2", 1: "5", 2: "8"}],
    ("c", 9): [{0: "0", 1: "3", 2: "6"}, {0: "1", 1: "4", 2: "7"}, {0: "2", 1: "5", 2: "8"}],
}


def table(order: list[FullyConnectedRound]) -> list[dict[int, str]]:
    """A round as {rank: digits of its examples}."""
    return [{p.rank: "".join(str(i) for i in range(p.start, p.stop)) for p in each.pieces} for each in order]


@pytest.mark.parametrize(("scheme", "group"), TABLES)
def test_three_ranks_of_three_examples(scheme: str, group: int) -> None:
    order = list(rounds(scheme, 3, 9, group))
    assert table(order) == TABLES[scheme, group]
    assert [each.number for each in order] == list(range(len(order)))


def test_four_ranks_in_pairs() -> None:
    assert table(list(rounds("c", 4, 8, 2))) == [{0: "0", 1: "2"}, {0: "1", 1: "3"}, {2: "4", 3: "6"}, {2: "5", 3: "7"}]


def test_rounds_are_equal_where_ranks_do_not_divide_their_minibatch() -> None:
    """Each of 3 ranks holds 4 examples: 1 + 1 + 2 in some order each, 4 in every round."""
    assert table(list(rounds("c", 3, 12)))[0] == {0: "0", 1: "4", 2: "89"}  # "89": 8 and 9
    assert [each.examples for each in rounds("c", 3, 12)] == [4, 4, 4]
    assert [each.examples for each in rounds("c", 8, 8 * 13)] == [13] * 8


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("count", [1, 2, 5, 16, 37])
@pytest.mark.parametrize(("scheme", "group"), [("a", 0), ("b", 0), ("c", 0), ("c", 2), ("c", 3)])
def test_every_example_once_by_the_rank_that_holds_it(ranks: int, count: int, scheme: str, group: int) -> None:
    seen = []
    for each in rounds(scheme, ranks, count, group):
        assert each.examples > 0
        assert [p.rank for p in each.pieces] == sorted({p.rank for p in each.pieces})
        for piece in each.pieces:
            held = share(count, piece.rank, ranks)
            assert held.start <= piece.start < piece.stop <= held.stop
            assert each.piece_of(piece.rank) == piece
            seen += range(piece.start, piece.stop)
    assert sorted(seen) == list(range(count))


def test_one_rank_has_one_round_in_every_scheme() -> None:
    assert {tuple(rounds(scheme, 1, 6)) for scheme in "abc"} == {tuple(rounds("a", 1, 6))}
