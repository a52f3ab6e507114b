"""The Golomb–Rice code: bits by hand, its size against theory, its parameter against all others."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpitrain.compression import golomb_rice


def with_signs(indices, seed=0):
    """uint32 words at `indices`, ascending."""
    indices = np.asarray(indices, np.uint32)
    return indices | (np.random.default_rng(seed).integers(0, 2, indices.size, dtype=np.uint32) << np.uint32(31))


def random_words(density, elements, seed=0):
    """Words whose gaps are those of positions drawn independently at `density`."""
    gaps = np.random.default_rng(seed).geometric(density, elements)
    return with_signs(np.cumsum(gaps) - 1, seed)


def expected_bits(density, k):
    """Mean bits an element for geometric gaps: quotient of mean Q/(1−Q), Q = (1−p)^(2^k); stop, sign, low bits."""
    q = (1 - density) ** 2**k
    return q / (1 - q) + 2 + k


def code(words, k):
    out = np.empty(golomb_rice.size(words, k), np.uint32)
    golomb_rice.encode(words, k, out)
    return out


def test_bits_by_hand():
    # index 2, +: gap−1 = 2 is quotient 1, low bit 0.   Written upwards: 1 0 | 0 | 0
    # index 8, −: gap−1 = 5 is quotient 2, low bit 1.   Written upwards: 1 1 0 | 1 | 1
    words = np.array([2, 8 | 1 << 31], np.uint32)
    assert code(words, 1).tolist() == [0b11011_0001]


def test_a_quotient_longer_than_a_word():
    words = np.array([70], np.uint32)
    assert code(words, 0).tolist() == [2**32 - 1, 2**32 - 1, 0b111111]
    back = np.empty(1, np.uint32)
    assert golomb_rice.decode(code(words, 0), 0, 71, back) and back[0] == 70


@given(st.sets(st.integers(0, 3000), max_size=200), st.integers(0, 30))
def test_every_parameter_decodes(indices, k):
    words = with_signs(sorted(indices))
    back = np.empty(words.size, np.uint32)
    assert golomb_rice.decode(code(words, k), k, 3001, back)
    assert back.tolist() == words.tolist()


@pytest.mark.parametrize(
    "payload",
    [
        [],  # nothing
        [0b11011_0001, 0],  # a word too many
        [0b1_11011_0001],  # something after the last element
        [2**32 - 1],  # a quotient without end
        [0b1111111_0001],  # index 10, beyond the vector
    ],
)
def test_wrong_bits_are_refused(payload):
    """Two elements of a vector of 9, as by hand."""
    assert golomb_rice.decode(np.array([0b11011_0001], np.uint32), 1, 9, np.empty(2, np.uint32))
    assert not golomb_rice.decode(np.array(payload, np.uint32), 1, 9, np.empty(2, np.uint32))


@pytest.mark.parametrize("density", [1e-5, 1e-4, 1e-3, 0.0036, 1e-2, 1e-1])
def test_size_is_that_of_theory(density):
    words = random_words(density, 20_000)
    bits = 32 * golomb_rice.size(words, golomb_rice.parameter(words)) / words.size
    assert bits == pytest.approx(min(expected_bits(density, k) for k in range(31)), rel=0.03)


def test_papers_ten_to_eleven_bits():
    assert 10 < min(expected_bits(0.0036, k) for k in range(31)) < 11


@pytest.mark.parametrize("mean", [0.01, 0.3, 0.6, 0.7, 1.0, 1.7, 3.1, 10, 99, 1000, 1e5, 1e7])
def test_parameter_is_the_best_for_geometric_gaps(mean):
    """m is the mean of gap−1, so the density is 1/(m+1)."""
    elements = 20
    last = round(elements * (mean + 1)) - 1
    words = np.append(np.arange(elements - 1), last).astype(np.uint32)
    sizes = [expected_bits(elements / (last + 1), k) if last >= elements else k for k in range(31)]
    assert sizes[golomb_rice.parameter(words)] == pytest.approx(min(sizes), rel=1e-9)


@pytest.mark.parametrize(("indices", "k"), [([], 0), ([0, 1, 2], 0), ([2**31 - 1], 30)])
def test_parameter_at_the_ends(indices, k):
    assert golomb_rice.parameter(np.array(indices, np.uint32)) == k
