"""The bitmap form: bits by hand, and what it refuses."""

import numpy as np
import pytest

from mpitrain.compression import bitmap


def with_signs(indices, seed=0):
    """uint32 words at `indices`, ascending."""
    indices = np.asarray(indices, np.uint32)
    return indices | (np.random.default_rng(seed).integers(0, 2, indices.size, dtype=np.uint32) << np.uint32(31))


def test_bits_by_hand():
    words = np.array([0, 33 | 1 << 31, 39], np.uint32)
    out = np.full(bitmap.size(40, 3), 0xFFFFFFFF, np.uint32)
    bitmap.encode(words, 40, out)
    assert out.tolist() == [0b1, 0b1000_0010, 0b010]


@pytest.mark.parametrize("length", [1, 31, 32, 33, 64, 1000])
def test_every_element(length):
    words, back = with_signs(range(length)), np.empty(length, np.uint32)
    out = np.empty(bitmap.size(length, length), np.uint32)
    bitmap.encode(words, length, out)
    assert bitmap.decode(out, length, back) and back.tolist() == words.tolist()


@pytest.mark.parametrize(
    ("payload", "accepted"),
    [
        ([0b1, 0b100_0000, 0], True),
        ([0b1, 0, 0], False),  # one element, not two
        ([0b11, 0b1, 0], False),  # three
        ([0b1, 0b1_0000_0000, 0], False),  # the second is beyond the vector
        ([0b11, 0, 0b100], False),  # a sign of no element
    ],
)
def test_wrong_bits_are_refused(payload, accepted):
    """Two elements of a vector of 40."""
    assert bitmap.decode(np.array(payload, np.uint32), 40, np.empty(2, np.uint32)) == accepted
