"""Every position of the order is handed out once, whatever comes back."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from mpitrain.sampling.assignments import Assignments, Work


def positions(work: Work) -> list[tuple[int, int]]:
    """The positions a range names."""
    return [(work.epoch, k) for k in range(work.start, work.start + work.count)]


@given(
    samples=st.integers(1, 50),
    epochs=st.integers(1, 3),
    steps=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 4), st.integers(0, 80)), min_size=1),
)
def test_each_position_is_trained_on_once(samples: int, epochs: int, steps: list[tuple[int, int, int]]) -> None:
    """Workers that use only a part of what they got, with changing minibatches."""
    ledger, used, turn = Assignments(samples, samples * epochs), Counter[tuple[int, int]](), 0
    while not ledger.exhausted:
        minibatch, minibatches, keep = steps[turn % len(steps)]
        turn += 1
        work = ledger.next(minibatch, minibatches)
        assert work is not None and 0 < work.count <= minibatch * minibatches
        count = min(work.count, max(keep, 1))
        used.update(positions(Work(work.epoch, work.start, count, work.minibatch)))
        ledger.give_back(work.rest(count))
    assert used == Counter({(e, k): 1 for e in range(epochs) for k in range(samples)})


def test_minibatches_of_a_range() -> None:
    """The last one is short."""
    assert [(w.start, w.count) for w in Work(2, 10, 25, 10).minibatches()] == [(10, 10), (20, 10), (30, 5)]


@given(count=st.integers(0, 100), parts=st.integers(1, 12))
def test_shares_differ_by_at_most_one_and_cover(count: int, parts: int) -> None:
    """What allreduce splits a minibatch into."""
    work = Work(0, 7, count, 100)
    shares = [work.share(k, parts) for k in range(parts)]
    assert [position for share in shares for position in positions(share)] == positions(work)
    assert max(s.count for s in shares) - min(s.count for s in shares) <= 1
