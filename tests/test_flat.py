"""Pieces of a flat vector."""

from hypothesis import given
from hypothesis import strategies as st

from mpitrain.flat import share


@given(st.integers(0, 10_000), st.integers(1, 100))
def test_shares_follow_one_another_and_differ_by_one_at_most(size: int, parts: int) -> None:
    shares = [share(size, part, parts) for part in range(parts)]
    assert [index for own in shares for index in range(own.start, own.stop)] == list(range(size))
    sizes = {own.stop - own.start for own in shares}
    assert max(sizes) - min(sizes) <= 1
