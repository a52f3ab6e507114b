"""Every position of the order is handed out once, whatever comes back."""

from collections import Counter
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from mpitrain import config as configuration
from mpitrain.sampling.queue import Queue, Work, joined


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
    ledger, used, turn = Queue(samples, samples * epochs), Counter[tuple[int, int]](), 0
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


@given(st.integers(1, 50), st.lists(st.tuples(st.integers(1, 20), st.integers(0, 2)), max_size=30))
def test_joined_minibatches_come_apart_again(samples: int, steps: list[tuple[int, int]]) -> None:
    """Also where some are missing between them, and where the minibatch changes."""
    queue, works = Queue(samples, 3 * samples), list[Work]()
    for minibatch, skipped in steps:
        for kept in (*[False] * skipped, True):
            if (work := queue.next(minibatch)) is not None and kept:
                works.append(work)
    assert [minibatch for each in joined(works) for minibatch in each.minibatches()] == works


@given(count=st.integers(0, 100), parts=st.integers(1, 12))
def test_shares_differ_by_at_most_one_and_cover(count: int, parts: int) -> None:
    """What allreduce splits a minibatch into."""
    work = Work(0, 7, count, 100)
    shares = [work.share(k, parts) for k in range(parts)]
    assert [position for share in shares for position in positions(share)] == positions(work)
    assert max(s.count for s in shares) - min(s.count for s in shares) <= 1


def test_minibatches_from_a_place() -> None:
    """Minibatches of one epoch and one stage; what a stopped run had given out comes first."""
    config = configuration.load(
        None, ["algorithm.name=easgd", "training.minibatch=7", "training.epochs=3", "stages=[{at=1.5, minibatch=5}]"]
    )
    schedule = config.schedule(20)
    queue = Queue(20, 60, 20, [Work(0, 3, 9, 7)])
    taken, place = queue.take(schedule, 0, 100)
    assert place == queue.end == 49
    assert [(w.epoch, w.start, w.count) for w in taken] == [
        *((0, 3, 7), (0, 10, 2)),
        *((1, 0, 7), (1, 7, 3), (1, 10, 5), (1, 15, 5)),
        *((2, 0, 5), (2, 5, 5), (2, 10, 5), (2, 15, 5)),
    ]
    assert queue.after(7).returned == [Work(0, 10, 2, 7)] and queue.after(9).returned == []
    assert [queue.after(place).position for place in (0, 9, 10)] == [20, 20, 21]


def test_ranges_to_hand_out_again_have_the_settings_of_their_own_positions() -> None:
    """Not of those handed out last: a stage with larger minibatches and more workers has begun since."""
    settings = ["algorithm.name=easgd", "training.minibatch=2"]
    stages = "stages=[{at=0, workers=1}, {at=1, minibatch=6, workers=2}]"
    schedule = configuration.load(None, [*settings, stages]).schedule(20)
    queue = Queue(20, 40, 30, [Work(0, 4, 3, 2), Work(1, 0, 6, 6)])
    assert [queue.position_at(place) for place in (0, 2, 3, 8, 9, 10)] == [4, 6, 20, 25, 30, 31]
    taken, _ = queue.take(schedule, 0, 4)
    assert taken == [Work(0, 4, 2, 2), Work(0, 6, 1, 2), Work(1, 0, 6, 6), Work(1, 10, 6, 6)]
    assert queue.take(schedule, 0, 4, worker=1) == ([], 0)


def test_whole_groups_from_a_place() -> None:
    """Groups of 12 in epochs of 20, minibatches of 7: 7 and 5, then the 8 that are left as 7 and 1."""
    config = configuration.load(None, ["algorithm.name=easgd", "training.minibatch=7", "training.epochs=2"])
    queue = Queue(20, 40)
    take = partial(queue.take, config.schedule(20), group=12)
    first, place = take(0, 1)
    assert [(w.start, w.count) for w in first] == [(0, 7), (7, 5)] and place == 12
    both, place = take(12, 3)
    assert [(w.epoch, w.start, w.count) for w in both] == [(0, 12, 7), (0, 19, 1), (1, 0, 7), (1, 7, 5)]
    assert take(32, 0) == ([], 32)  # who has enough
    assert queue.next_of_group(12) == Work(0, 0, 12, 12) and queue.next_of_group(12) == Work(0, 12, 8, 8)


def test_a_place_has_nothing_for_a_worker_whose_stage_has_not_come() -> None:
    """By the worker's number."""
    settings = ["algorithm.name=easgd", "training.minibatch=5", "stages=[{at=0, workers=1}, {at=1, workers=2}]"]
    take = partial(Queue(20, 40).take, configuration.load(None, settings).schedule(20))
    assert take(0, 2, worker=1) == ([], 0)
    assert len(take(0, 2, worker=0)[0]) == len(take(20, 2, worker=1)[0]) == 2


@given(
    sizes=st.tuples(st.integers(1, 50), st.integers(0, 60), st.integers(0, 100)),
    minibatch=st.integers(1, 20),
    returned=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 30)), max_size=3),
)
def test_the_dispenser_and_the_places_give_the_same(
    sizes: tuple[int, int, int], minibatch: int, returned: list[tuple[int, int]]
) -> None:
    """Minibatch by minibatch from the head, and by places in a queue that stays as it is."""
    samples, position, more = sizes
    again = [Work(0, start, count, 7) for start, count in returned]
    queue = Queue(samples, position + more, position, again)
    schedule = configuration.load(None, [f"training.minibatch={minibatch}"]).schedule(samples)
    schedule.total = queue.total
    taken, end = queue.take(schedule, 0, 10**6)
    ledger = Queue(samples, position + more, position, list(again))
    assert [ledger.next(minibatch) for _ in taken] == taken
    assert ledger.exhausted and queue.after(end).exhausted and end == queue.end and ledger == queue.after(end)


def test_what_was_handed_out_last_can_be_as_if_it_never_was() -> None:
    """And then other ranges before it; one that somebody has is in the way."""
    queue = Queue(10, 30)
    first, second, third = queue.next(4), queue.next(4), queue.next(4)
    assert first is not None and second is not None and third is not None and queue.position == 10
    queue.give_back(first)
    queue.give_back(third)
    queue.rewind()
    assert (queue.position, queue.returned) == (8, [first])
    queue.give_back(second)
    queue.rewind()
    assert (queue.position, queue.returned, queue.end) == (0, [], 30)
