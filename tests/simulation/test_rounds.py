"""The messages of collectives: everybody gets what is meant for it, and no more than the algorithms need."""

from collections.abc import Callable, Iterable, Sequence

import pytest

from mpitrain.simulation import rounds
from mpitrain.simulation.rounds import Round

RANKS = (1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 21)
POWERS = (2, 4, 8, 16)
SHORT, MEDIUM, LONG = 960, 96_000, 960_000  # bytes, which many numbers divide
#: The node of each of so many ranks.
NODES: dict[str, Callable[[int], Sequence[int]]] = {
    "a node each": range,
    "one node": lambda ranks: [0] * ranks,
    "by threes": lambda ranks: [rank // 3 for rank in range(ranks)],
    "in turns": lambda ranks: [rank % 2 for rank in range(ranks)],
}


def heard(messages: Iterable[Round], ranks: int) -> tuple[list[set[int]], list[int]]:
    """Of whom each rank has heard, if each message tells what its sender had before the round; the bytes it took."""
    known, taken = [{rank} for rank in range(ranks)], [0] * ranks
    for each in messages:
        before = [set(of) for of in known]
        sources, targets = {source for source, _, _ in each}, {target for _, target, _ in each}
        assert len(sources) == len(targets) == len(each)
        for source, target, nbytes in each:
            assert source != target
            known[target] |= before[source]
            taken[target] += nbytes
    return known, taken


@pytest.mark.parametrize("placed", NODES)
@pytest.mark.parametrize("nbytes", [SHORT, MEDIUM, LONG])
def test_who_hears_of_whom(placed: str, nbytes: int) -> None:
    """All of all where there is no root; else all of the root, or it of all."""
    for ranks in RANKS:
        nodes, everybody = NODES[placed](ranks), set(range(ranks))
        counts = [nbytes // 4 // ranks] * ranks
        sent = sum(counts) * 4
        for found in (
            rounds.barrier(nodes, 0),
            rounds.allreduce(nodes, nbytes),
            rounds.gather(counts, nodes, sent),
            rounds.reduce_scatter(counts, nodes, sent),
        ):
            assert heard(found, ranks)[0] == [everybody] * ranks
        for root in {0, ranks // 2, ranks - 1}:
            known, taken = heard(rounds.broadcast(root, nodes, nbytes), ranks)
            assert all(root in of for of in known)
            assert all(nbytes <= taken[rank] or rank == root or ranks >= 8 for rank in range(ranks))
            assert heard(rounds.reduce(root, nodes, nbytes), ranks)[0][root] == everybody


@pytest.mark.parametrize("nbytes", [SHORT, MEDIUM, LONG])
def test_a_gather_brings_each_rank_the_others_pieces(nbytes: int) -> None:
    """Once, whatever their lengths, by each of the three algorithms."""
    for ranks in RANKS:
        counts = [rank * nbytes // ranks // ranks for rank in range(ranks)]
        _, taken = heard(rounds.gather(counts, range(ranks), 4 * sum(counts)), ranks)
        assert taken == [4 * (sum(counts) - count) for count in counts]


def test_sums_need_the_least_bytes() -> None:
    """Of n ranks, a power of two: 2·(n−1)/n of the array, or (n−1)/n of it where each gets a piece."""
    for ranks in POWERS:
        counts, nodes = [LONG // 16 // ranks] * ranks, range(ranks)
        for nbytes in (LONG // 4, LONG):
            counts = [nbytes // 4 // ranks] * ranks
            assert heard(rounds.allreduce(nodes, nbytes), ranks)[1] == [2 * (ranks - 1) * nbytes // ranks] * ranks
            found = heard(rounds.reduce_scatter(counts, nodes, nbytes), ranks)[1]
            assert found == [(ranks - 1) * nbytes // ranks] * ranks
            halves, gathered = (ranks - 1) * nbytes // ranks, heard(rounds.reduce(1, nodes, nbytes), ranks)[1]
            assert gathered[1] == 2 * halves and min(gathered) == halves


def test_nothing_is_sent_of_empty_pieces() -> None:
    """As in MPICH, no round at all."""
    assert [*rounds.gather([0, 0, 0], [0, 1, 2], 0)] == [*rounds.reduce_scatter([0, 0, 0], [0, 1, 2], 0)] == []
