"""What the ranks of a collective send each other, round by round, by MPICH's algorithms for nonblocking collectives.

Within a round a rank sends at most one message and takes at most one; it goes on once both are done. Which algorithm is
taken from what size on are the rules built into MPICH 5.0; the algorithms are those of Thakur, Rabenseifner & Gropp
(2005). Ranks are those of the communicator, sizes are bytes; `nodes` are the nodes of the ranks.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, zip_longest

from mpitrain.flat import share

Message = tuple[int, int, int]  # from, to, bytes
Round = list[Message]

SHORT_SUM = 2048
FEW, SHORT_BROADCAST, LONG_BROADCAST = 8, 12288, 524288
SHORT_GATHER, LONG_GATHER, LONG_SCATTER = 81920, 524288, 524288


class Blocks:
    """The sizes in bytes of consecutive blocks."""

    def __init__(self, sizes: Iterable[int]) -> None:
        once = [*sizes]
        self._ends, self._count, self.total = [0, *accumulate(once * 2)], len(once), sum(once)

    @classmethod
    def equal(cls, nbytes: int, count: int) -> "Blocks":
        """`count` blocks of `nbytes` bytes in all, whose sizes differ by one at most."""
        parts = (share(nbytes, part, count) for part in range(count))
        return cls(part.stop - part.start for part in parts)

    @classmethod
    def shares(cls, counts: Sequence[int], nbytes: int) -> "Blocks":
        """Blocks of `counts` elements each, of `nbytes` bytes in all."""
        itemsize = nbytes // max(sum(counts), 1)
        return cls(count * itemsize for count in counts)

    def span(self, begin: int, end: int) -> int:
        """The bytes of the blocks from `begin` to before `end`, in a ring."""
        return self._ends[end] - self._ends[begin]

    def one(self, number: int) -> int:
        """The bytes of one block, in a ring."""
        number %= self._count
        return self.span(number, number + 1)


def barrier(nodes: Sequence[int], nbytes: int) -> Iterator[Round]:
    """Dissemination: each tells the rank 1, 2, 4, … places after it."""
    ranks = len(nodes)
    for step in _powers(ranks):
        yield [(rank, (rank + step) % ranks, nbytes) for rank in range(ranks)]


def allreduce(nodes: Sequence[int], nbytes: int) -> Iterator[Round]:
    """Few bytes: recursive doubling; more: a reduce-scatter by recursive halving, then an allgather."""
    kept, folded = _folded(range(len(nodes)))
    short = nbytes <= SHORT_SUM
    steps = [*_powers(len(kept))]
    rounds = [_exchange(kept, step, lambda _, step: nbytes if short else nbytes // (2 * step)) for step in steps]
    yield [(other, rank, nbytes) for rank, other in folded]
    yield from rounds
    if not short:
        yield from reversed(rounds)
    yield [(rank, other, nbytes) for rank, other in folded]


def broadcast(root: int, nodes: Sequence[int], nbytes: int) -> Iterator[Round]:
    """If there are nodes of several ranks, to one rank of each node and from there within it."""
    home, *others = _groups(nodes, root)
    if _are_nested([home, *others]):
        yield [(root, home[0], nbytes)] if root != home[0] else []
        yield from _spread([home[0], *(group[0] for group in others)], nbytes)
        yield from _together(_spread(group, nbytes) for group in (home, *others))
    else:
        yield from _spread([*range(root, len(nodes)), *range(root)], nbytes)


def reduce(root: int, nodes: Sequence[int], nbytes: int) -> Iterator[Round]:
    """If there are nodes of several ranks, to one rank of each node, and from these to the root."""
    home, *others = _groups(nodes, root)
    if _are_nested([home, *others]):
        yield from _together(_collect(group, nbytes) for group in (home, *others))
        yield from _collect([home[0], *(group[0] for group in others)], nbytes)
        yield [(home[0], root, nbytes)] if root != home[0] else []
    else:
        yield from _collect([*range(root, len(nodes)), *range(root)], nbytes)


def gather(counts: Sequence[int], nodes: Sequence[int], nbytes: int) -> Iterator[Round]:
    """An allgather of pieces of `counts` elements: recursive doubling, Bruck's algorithm (1997), or a ring."""
    blocks, ranks = Blocks.shares(counts, nbytes), len(nodes)
    if blocks.total and _is_power(ranks) and blocks.total < LONG_GATHER:
        yield from _doubling(range(ranks), blocks)
    elif blocks.total and blocks.total < SHORT_GATHER:
        for step in _powers(ranks):
            held = min(step, ranks - step)
            yield [(rank, (rank - step) % ranks, blocks.span(rank, rank + held)) for rank in range(ranks)]
    elif blocks.total:
        yield from _ring(range(ranks), blocks)


def reduce_scatter(counts: Sequence[int], nodes: Sequence[int], nbytes: int) -> Iterator[Round]:
    """Recursive halving; from half a megabyte on each rank sends every other its piece."""
    blocks, ranks = Blocks.shares(counts, nbytes), len(nodes)
    if blocks.total >= LONG_SCATTER:
        for step in range(1, ranks):
            to = [(rank + step) % ranks for rank in range(ranks)]
            yield [(rank, other, blocks.one(other)) for rank, other in enumerate(to)]
    elif blocks.total:
        kept, folded = _folded(range(ranks))
        ends = [0, *(rank + 1 for rank in kept)]  # of the blocks that each answers for
        yield [(other, rank, blocks.total) for rank, other in folded]
        for step in reversed([*_powers(len(kept))]):
            yield _exchange(kept, step, lambda i, step: blocks.span(*(ends[at] for at in _half(i, step))))
        yield [(rank, other, blocks.one(other)) for rank, other in folded]


def _spread(ranks: Sequence[int], nbytes: int) -> Iterator[Round]:
    """Broadcast from the first of some ranks: in a tree; many bytes: a scatter in a tree, then an allgather."""
    if nbytes < SHORT_BROADCAST or len(ranks) < FEW:
        yield from _tree(ranks, lambda begin, end: nbytes)
    else:
        blocks = Blocks.equal(nbytes, len(ranks))
        yield from _tree(ranks, blocks.span)
        yield from (_doubling if _is_power(len(ranks)) and nbytes < LONG_BROADCAST else _ring)(ranks, blocks)


def _collect(ranks: Sequence[int], nbytes: int) -> Iterator[Round]:
    """Reduce to the first of some ranks: in a tree; more bytes: recursive halving, then a gather in a tree."""
    if nbytes <= SHORT_SUM:
        for each in reversed([*_tree(ranks, lambda begin, end: nbytes)]):
            yield [(target, source, size) for source, target, size in each]
        return
    kept, folded = _folded(ranks[::-1])
    kept.reverse()  # the first comes first again; as the last it was never folded into another
    yield [(other, rank, nbytes) for rank, other in folded]
    steps = [*_powers(len(kept))]
    for step in steps:
        yield _exchange(kept, step, lambda _, step: nbytes // (2 * step))
    for step in reversed(steps):
        yield [(kept[i], kept[i - step], nbytes // (2 * step)) for i in range(step, 2 * step)]


def _tree(ranks: Sequence[int], size: Callable[[int, int], int]) -> Iterator[Round]:
    """Down a binomial tree: each place gets the `size` bytes for the places of its subtree."""
    count = len(ranks)
    for step in reversed([*_powers(count)]):
        begins = range(step, count, 2 * step)
        yield [(ranks[i - step], ranks[i], size(i, min(i + step, count))) for i in begins]


def _doubling(ranks: Sequence[int], blocks: Blocks) -> Iterator[Round]:
    """An allgather by recursive doubling, of a power of two of blocks, one at each place."""
    for step in _powers(len(ranks)):
        yield _exchange(ranks, step, lambda i, step: blocks.span(*_half(i ^ step, step)))


def _ring(ranks: Sequence[int], blocks: Blocks) -> Iterator[Round]:
    """An allgather in a ring, of one block at each place: a place passes on what it received last."""
    count = len(ranks)
    for step in range(count - 1):
        yield [(ranks[i], ranks[(i + 1) % count], blocks.one(i - step)) for i in range(count)]


def _exchange(ranks: Sequence[int], step: int, size: Callable[[int, int], int]) -> Round:
    """An exchange between places that differ in the bit `step`; `size` gives the bytes for the receiving place."""
    return [(rank, ranks[i ^ step], size(i ^ step, step)) for i, rank in enumerate(ranks)]


def _half(i: int, step: int) -> tuple[int, int]:
    """The places, from one to before another, that differ from one in bits below `step` only."""
    begin = i // step * step
    return begin, begin + step


def _folded(ranks: Sequence[int]) -> tuple[list[int], list[tuple[int, int]]]:
    """A power of two of the ranks, and pairs (one of these, the rank folded into it)."""
    beyond = len(ranks) - (1 << (len(ranks).bit_length() - 1))
    pairs = [(ranks[2 * i + 1], ranks[2 * i]) for i in range(beyond)]
    return [*(rank for rank, _ in pairs), *ranks[2 * beyond :]], pairs


def _groups(nodes: Sequence[int], root: int) -> list[list[int]]:
    """The places of each node, that of the root first."""
    found: dict[int, list[int]] = {nodes[root]: []}
    for rank, node in enumerate(nodes):
        found.setdefault(node, []).append(rank)
    return [*found.values()]


def _are_nested(groups: Sequence[Sequence[int]]) -> bool:
    """Whether there are several nodes, and one with several ranks."""
    return 1 < len(groups) < sum(len(group) for group in groups)


def _together(parts: Iterable[Iterable[Round]]) -> Iterator[Round]:
    """Rounds of different ranks at the same time."""
    for rounds in zip_longest(*parts, fillvalue=[]):
        yield [message for each in rounds for message in each]


def _powers(end: int) -> Iterator[int]:
    """1, 2, 4, … before the end."""
    return (1 << k for k in range((end - 1).bit_length()))


def _is_power(number: int) -> bool:
    return number & (number - 1) == 0
