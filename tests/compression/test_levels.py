"""Levels of entries: what was encoded comes back, and what no encoder wrote is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpitrain.compression import levels as form
from mpitrain.compression.thresholds import COUNT_MAX

WIDTHS = (1, 3, 31)


def encoded(levels, width):
    out = np.full(form.size(len(levels), width), 0xAAAAAAAA, np.uint32)
    form.encode(np.array(levels, np.uint32), width, out)
    return out


def decoded(payload, width, count):
    levels = np.full(count, 0xAAAAAAAA, np.uint32)
    return bool(form.decode(payload, width, levels)), levels.tolist()


@given(st.sampled_from(WIDTHS), st.data())
def test_levels_come_back(width, data):
    levels = data.draw(st.lists(st.integers(1, min(2**width, COUNT_MAX)), max_size=100))
    assert decoded(encoded(levels, width), width, len(levels)) == (True, levels)


def test_by_hand():
    assert encoded([1, 2, 2, 1], 1).tolist() == [0b0110]
    assert encoded([8, 1, 3], 3).tolist() == [0b010_000_111]
    assert encoded([*[1] * 10, 8], 3).tolist() == [0b11 << 30, 0b1]
    assert encoded([COUNT_MAX, 2], 31).tolist() == [2**31 - 2 | 1 << 31, 0]


@pytest.mark.parametrize("width", WIDTHS)
def test_padding_is_zero(width):
    for count in (1, 11, 33):
        payload = encoded([1] * count, width)
        for bit in range(count * width, 32 * payload.size):
            spoilt = payload.copy()
            spoilt[bit // 32] ^= np.uint32(1 << bit % 32)
            assert not decoded(spoilt, width, count)[0]


def test_a_level_beyond_the_counts_is_refused():
    assert not decoded(np.array([2**31 - 1], np.uint32), 31, 1)[0]
