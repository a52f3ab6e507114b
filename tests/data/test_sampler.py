"""The order of samples: each exactly once an epoch, wherever minibatches are cut."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mpitrain.data.sampler import chunked_indices, epoch_indices, independent_indices


@given(st.integers(0, 5), st.integers(0, 3), st.integers(1, 300), st.lists(st.integers(1, 64), min_size=1, max_size=40))
def test_changing_minibatches_serve_each_sample_once(seed: int, epoch: int, samples: int, sizes: list[int]) -> None:
    served: list[int] = []
    while len(served) < samples:
        size = sizes[len(served) % len(sizes)]
        served.extend(epoch_indices(seed, epoch, samples)[len(served) : len(served) + size])
    assert sorted(served) == list(range(samples))


def test_orders_depend_on_seed_and_epoch_alone() -> None:
    assert np.array_equal(epoch_indices(1, 2, 100), epoch_indices(1, 2, 100))
    assert not np.array_equal(epoch_indices(1, 2, 100), epoch_indices(1, 3, 100))
    assert not np.array_equal(epoch_indices(1, 2, 100), epoch_indices(2, 2, 100))


def test_an_order_cannot_be_changed() -> None:
    assert not epoch_indices(1, 0, 10).flags.writeable
    assert not chunked_indices(1, 0, 10, 2, 3).flags.writeable


@settings(max_examples=50)
@given(st.integers(1, 3000), st.integers(1, 5), st.integers(1, 700))
def test_chunked_order_serves_each_sample_once(samples: int, loaders: int, chunk: int) -> None:
    assert sorted(chunked_indices(3, 1, samples, loaders, chunk)) == list(range(samples))


def test_chunked_order_reads_few_chunks_at_a_time() -> None:
    order = chunked_indices(7, 0, 1000, loaders=2, chunk=100)
    for begin in range(0, 1000, 200):
        assert len(set(order[begin : begin + 200] // 100)) == 2


def test_groups_are_whole_chunks_which_begin_below_the_remainder() -> None:
    """1037 samples in chunks of 100: ten of them from the same place on, then the 37 samples before and after them."""
    places = set()
    for epoch in range(20):
        order = chunked_indices(7, epoch, 1037, loaders=2, chunk=100)
        first = int(order[:1000].min())
        places.add(first)
        assert 0 <= first <= 37
        for begin in range(0, 1000, 200):
            assert len(set((order[begin : begin + 200] - first) // 100)) == 2
        assert set(order[1000:]) == {*range(first), *range(first + 1000, 1037)}
    assert len(places) > 5


def test_independent_draws_are_uniform_and_keyed_by_position() -> None:
    draws = independent_indices(1, 0, 0, 10000, 10)
    counts = np.bincount(draws, minlength=10)
    assert draws.dtype == np.int64 and counts.min() > 850 and counts.max() < 1150  # five standard deviations
    assert np.array_equal(draws, independent_indices(1, 0, 0, 10000, 10))
    assert not np.array_equal(draws[:32], independent_indices(1, 0, 32, 32, 10))
