"""The sparse delta rule: the exact law of each step, thresholds, integer weights, leftovers."""

from fractions import Fraction
from math import frexp, inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from mpitrain.compression.residual import INDEX, SIGN, accumulate
from mpitrain.compression.thresholds import (
    COUNT_MAX,
    UNIT,
    adapted,
    greatest_level,
    integer_step,
    restore_weights,
    round_threshold,
    round_weights,
    share_residuals,
    unit_quantum,
)
from mpitrain.errors import BadInput, TrainingFailed

DTYPES = [np.float32, np.float64]


def signs(words, size):
    """The emitted elements as +1, 0, −1."""
    emitted = np.zeros(size, np.int8)
    emitted[words & INDEX] = np.where(words & SIGN, -1, 1)
    return emitted


def step(residual, gradient, **settings):
    """One `accumulate`: the residual after, and what was emitted as +1, 0, −1."""
    after, words = residual.copy(), np.empty(residual.size, np.uint32)
    words = words[: accumulate(after, gradient, words, **settings)]
    assert (np.diff((words & INDEX).astype(np.int64)) > 0).all()
    return after, signs(words, residual.size)


@st.composite
def steps(draw):
    """Residual, gradient, scale and threshold of one dtype, with values on both sides of the threshold and at it."""
    dtype, size = draw(st.sampled_from(DTYPES)), draw(st.integers(0, 150))
    threshold = round_threshold(draw(st.floats(2.0**-30, 2.0**20)))
    width = 32 if dtype is np.float32 else 64
    relative = st.floats(-1000, 1000, width=width) | st.sampled_from([-2.0, -1.0, -0.0, 0.0, 1.0, 2.0, 1e-30])
    residual, gradient = (draw(arrays(dtype, size, elements=relative)) * dtype(threshold) for _ in "rg")
    return residual, gradient, draw(st.integers(1, 30)), threshold


@given(steps())
def test_each_step_conserves_to_the_bit(case):
    residual, gradient, scale, threshold = case
    after, emitted = step(residual, gradient, scale=scale, threshold=threshold)
    summed = residual + gradient.dtype.type(scale) * gradient
    assert (emitted == np.where(summed > threshold, 1, np.where(summed < -threshold, -1, 0))).all()
    assert after[emitted == 0].tobytes() == summed[emitted == 0].tobytes()
    for i in np.flatnonzero(emitted):
        assert int(emitted[i]) * Fraction(threshold) + Fraction(float(after[i])) == Fraction(float(summed[i]))


def many_bits(residual, gradient, bits, **settings):
    """One `accumulate` of `bits` bits an element: the residual after, and how many quanta of each were emitted."""
    after, words, levels = residual.copy(), np.empty(residual.size, np.uint32), np.empty(residual.size, np.uint32)
    count = accumulate(after, gradient, words, levels=levels, greatest=greatest_level(bits), **settings)
    assert (levels[:count] >= 1).all() and (levels[:count] <= greatest_level(bits)).all()
    emitted = np.zeros(residual.size, np.int64)
    emitted[words[:count] & INDEX] = levels[:count]
    return after, emitted * signs(words[:count], residual.size)


@given(steps(), st.sampled_from([1, 2, 4]))
def test_each_step_of_more_bits_conserves_to_the_bit(case, bits):
    residual, gradient, scale, threshold = case
    after, emitted = many_bits(residual, gradient, bits, scale=scale, threshold=threshold)
    summed = residual + gradient.dtype.type(scale) * gradient
    for kept, sent, whole in zip(after.tolist(), emitted.tolist(), summed.tolist(), strict=True):
        often = int(Fraction(whole) / Fraction(threshold)) if abs(whole) > threshold else 0  # int truncates
        assert sent == np.clip(often, -(2 ** (bits - 1)), 2 ** (bits - 1))
        assert sent * Fraction(threshold) + Fraction(kept) == Fraction(whole)


@given(steps(), st.floats(1e-8, 1e6))
def test_each_unquantised_step_conserves_to_the_bit(case, units):
    """`units` a threshold of 0.5 and more; what exceeds COUNT_MAX units is not tested here."""
    residual, gradient, scale, threshold = case
    rate = (0.51 + units) * UNIT / threshold
    quantum = Fraction(unit_quantum(rate))
    assert abs(quantum * Fraction(rate) / Fraction(UNIT) - 1) <= 2.0**-22
    after, emitted = many_bits(residual, gradient, 32, scale=scale, threshold=threshold, quantum=float(quantum))
    summed = residual + gradient.dtype.type(scale) * gradient
    assert ((emitted != 0) == (np.abs(summed) > threshold)).all()
    for kept, sent, whole in zip(after.tolist(), emitted.tolist(), summed.tolist(), strict=True):
        if 0 < abs(sent) < COUNT_MAX:
            assert abs(Fraction(kept)) <= quantum * Fraction(50001, 100000)
            assert sent * quantum + Fraction(kept) == Fraction(whole)


def test_more_bits_by_hand():
    residual = np.array([3.0, -3.0, 4.0, -4.0, 0.0, 1.0, 3.5], np.float32)
    gradient = np.array([1.0, -1.0, 0.5, 0.0, 0.0, 20.0, 2.25], np.float32)  # sums 5, -5, 5, -4, 0, 41, 8
    expected = {
        1: ([1, -1, 1, 0, 0, 1, 1], [1.0, -1.0, 1.0, -4.0, 0.0, 37.0, 4.0]),
        2: ([1, -1, 1, 0, 0, 2, 2], [1.0, -1.0, 1.0, -4.0, 0.0, 33.0, 0.0]),
        4: ([1, -1, 1, 0, 0, 8, 2], [1.0, -1.0, 1.0, -4.0, 0.0, 9.0, 0.0]),
    }
    for bits, (sent, kept) in expected.items():
        after, emitted = many_bits(residual, gradient, bits, scale=2, threshold=4.0)
        assert emitted.tolist() == sent and after.tolist() == kept
    after, emitted = many_bits(residual, gradient, 32, scale=2, threshold=4.0, quantum=3.0)
    assert emitted.tolist() == [2, -2, 2, 0, 0, 14, 3] and after.tolist() == [-1.0, 1.0, -1.0, -4.0, 0.0, -1.0, -1.0]
    after, emitted = many_bits(residual, gradient, 4, scale=2, threshold=4.0, limit=0.5)
    assert emitted.tolist() == expected[4][0] and after.tolist() == [0.5, -0.5, 0.5, -0.5, 0.0, 0.5, 0.0]
    after, emitted = many_bits(residual, gradient, 4, scale=2, threshold=inf, limit=6.0)
    assert not emitted.any() and after.tolist() == [5.0, -5.0, 5.0, -4.0, 0.0, 6.0, 6.0]


def test_levels_and_quanta_by_hand():
    assert [greatest_level(bits) for bits in (1, 2, 4, 32)] == [1, 2, 8, 2**31 - 1]
    assert unit_quantum(UNIT) == 1.0 and unit_quantum(2 * UNIT) == 0.5
    assert unit_quantum(3 * UNIT) == 2796203 / 2**23  # 2^23 / 3 is 2 796 202.67


@pytest.mark.parametrize("dtype", DTYPES)
def test_product_is_rounded_before_the_sum(dtype):
    residual, gradient = np.random.default_rng(1).standard_normal((2, 10_000)).astype(dtype)
    after, emitted = step(residual, gradient, scale=3, threshold=inf)
    assert (after == residual + dtype(3) * gradient).all() and not emitted.any()


def test_by_hand():
    residual = np.array([3.0, -3.0, 4.0, -4.0, 0.0, 1.0], np.float32)
    gradient = np.array([1.0, -1.0, 0.5, 0.0, 0.0, 20.0], np.float32)
    after, emitted = step(residual, gradient, scale=2, threshold=4.0)
    assert emitted.tolist() == [1, -1, 1, 0, 0, 1]  # 4 itself does not exceed 4
    assert after.tolist() == [1.0, -1.0, 1.0, -4.0, 0.0, 37.0]
    after, _ = step(residual, gradient, scale=2, threshold=4.0, limit=8.0)
    assert after.tolist() == [1.0, -1.0, 1.0, -4.0, 0.0, 8.0]


@pytest.mark.parametrize("size", [6, 200])
def test_every_residual_is_clipped_by_hand(size):
    """Also what is withheld, and what a limit below the threshold leaves unsent: in whole spans and beside them."""
    residual, gradient = np.zeros((2, size), np.float32)
    residual[:6], gradient[:6] = [3.0, -3.0, 1.0, -1.0, 0.0, 1.0], [3.0, -3.0, 0.5, -0.5, 0.0, 20.0]
    after, emitted = step(residual, gradient, scale=2, threshold=inf, limit=8.0)
    assert after[:6].tolist() == [8.0, -8.0, 2.0, -2.0, 0.0, 8.0] and not emitted.any()
    after, emitted = step(residual, gradient, scale=2, threshold=4.0, limit=1.5)
    assert after[:6].tolist() == [1.5, -1.5, 1.5, -1.5, 0.0, 1.5]
    assert emitted[:6].tolist() == [1, -1, 0, 0, 0, 1] and not emitted[6:].any()


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 127, 128, 1000])
def test_every_element_is_seen_once(size):
    after, emitted = step(np.zeros(size, np.float32), np.full(size, -1.5, np.float32), scale=1, threshold=1.0)
    assert (emitted == -1).all() and (after == -0.5).all()


@pytest.mark.parametrize("bad", [nan, inf, -inf])
@pytest.mark.parametrize("at", [0, 70, 99])
def test_divergence_is_reported(bad, at):
    gradient = np.zeros(100, np.float32)
    gradient[at] = bad
    with pytest.raises(TrainingFailed, match=f"element {at} "):
        step(np.zeros(100, np.float32), gradient, scale=1, threshold=1.0)


@given(st.floats(2.0**-100, 2.0**100))
def test_threshold_has_eight_bits(threshold):
    rounded = round_threshold(threshold)
    assert abs(rounded - threshold) <= 2.0**-8 * threshold
    assert frexp(rounded)[0] * 256 == int(frexp(rounded)[0] * 256)
    assert np.float32(rounded) == rounded and round_threshold(rounded) == rounded


def test_thresholds_by_hand():
    assert [round_threshold(x) for x in (4.0, 1 / 3, 255.4, 511.9)] == [4.0, 171 / 512, 255.0, 512.0]
    for bad in (0.0, -1.0, nan, inf, 1e-40):
        with pytest.raises(BadInput, match="threshold"):
            round_threshold(bad)


@pytest.mark.parametrize("start", [1e-4, 1.0, 1e5])
def test_adaptive_threshold_settles_at_the_target(start):
    rng, size, target = np.random.default_rng(2), 20_000, 0.01
    scale = np.exp(2 * rng.standard_normal(size))
    residual, words = np.zeros(size), np.empty(size, np.uint32)
    level, densities = start, []
    for _ in range(200):
        threshold = round_threshold(level)
        gradient = scale * rng.standard_normal(size)
        densities.append(
            accumulate(residual, gradient, words, scale=1, threshold=threshold, limit=8 * threshold) / size
        )
        level = adapted(level, densities[-1], target, 1e-3)
    assert 0.8 * target < np.mean(densities[-50:]) < 1.2 * target
    assert max(densities[-50:]) < 2 * target


def test_adaptive_threshold_moves_within_bounds():
    assert adapted(1.0, 0.01, 0.01, 1.0) == 1.0
    assert adapted(1.0, 0.03, 0.01, 1.0) == pytest.approx(np.exp(0.2))
    assert adapted(1.0, 1.0, 1e-6, 1.0) == pytest.approx(2.0)
    assert adapted(1.0, 0.0, 0.01, 1.0) == pytest.approx(np.exp(-0.1))


@given(st.floats(1e-6, 1.0))
def test_an_adapted_threshold_gives_steps_that_fit(rate):
    for level, density, units in ((1e-30, 0.0, 16), (1e30, 1.0, 2**30)):
        step = integer_step(rate, round_threshold(adapted(level, density, 0.01, rate)))
        assert 0.99 * units <= step <= 1.01 * units


def test_the_mean_density_is_the_target_however_uneven_messages_are():
    """On a random walk of each element most minibatches send next to nothing."""
    rng, size, target, level = np.random.default_rng(4), 20_000, 0.002, 1.0
    residual, words, densities = np.zeros(size), np.empty(size, np.uint32), []
    for _ in range(400):
        threshold, step = round_threshold(level), rng.standard_normal(size)
        densities.append(accumulate(residual, step, words, scale=1, threshold=threshold) / size)
        level = adapted(level, densities[-1], target, 1e-3)
    assert 0.9 * target < np.mean(densities[-300:]) < 1.1 * target


def test_integer_steps_by_hand():
    assert integer_step(0.008, 4.0) == 2_147_484  # 0.032 · 67 108 864 = 2 147 483.648
    assert integer_step(UNIT, 16.0) == 16
    assert integer_step(UNIT, 15.0) == 15
    for rate, threshold in ((UNIT, 0.5), (32.0, 1.0), (nan, 1.0), (inf, 1.0)):
        with pytest.raises(BadInput, match="units"):
            integer_step(rate, threshold)


@pytest.mark.parametrize("dtype", DTYPES)
def test_initial_weights_are_rounded_to_the_unit(dtype):
    weights = np.array([0.0, 0.3 * UNIT, -0.7 * UNIT, 1.0, -31.5], dtype)
    counts = np.empty(5, np.int32)
    round_weights(weights, counts)
    assert counts.tolist() == [0, 0, -1, 2**26, -63 * 2**25]
    assert weights.tolist() == [0.0, 0.0, -UNIT, 1.0, -31.5]


@pytest.mark.parametrize("bad", [32.0, -32.0, nan, inf])
def test_weights_beyond_the_range_are_bad_input(bad):
    with pytest.raises(BadInput, match="32"):
        round_weights(np.array([bad]), np.empty(1, np.int32))


def test_weights_are_rounded_once():
    counts = np.array([2**24 + 1, 2**24 + 3, 2**31 - 1, -(2**31) + 1], np.int32)
    weights = np.empty(4, np.float32)
    restore_weights(counts, weights)
    assert (weights / np.float32(UNIT)).tolist() == [2.0**24, 2.0**24 + 4, 2.0**31, -(2.0**31)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 3), (1, 5), (3, 1)])
def test_leftover_residuals_are_summed_and_shared(dtype, before, after):
    residuals = list(np.random.default_rng(3).integers(-1000, 1000, (before, 50)).astype(dtype))
    shares = [np.empty(50, dtype) for _ in range(after)]
    for rank, share in enumerate(shares):
        share_residuals(residuals, after, rank, share)
    total = sum(residuals)
    assert np.abs(sum(share.astype(np.float64) for share in shares) - total).max() <= np.finfo(dtype).eps * 4000
    assert np.allclose(shares, total / after, rtol=1e-5, atol=1e-3)


def test_rounding_of_a_share_is_not_lost():
    shares = np.empty((3, 1), np.float32)
    for rank in range(3):
        share_residuals([np.ones(1, np.float32)], 3, rank, shares[rank])
    assert shares.astype(np.float64).sum() == 1.0 and shares[0, 0] == shares[1, 0] != shares[2, 0]


def test_as_many_ranks_keep_their_own_residuals():
    residuals = list(np.random.default_rng(4).standard_normal((3, 10)).astype(np.float32))
    share = np.empty(10, np.float32)
    share_residuals(residuals, 3, 1, share)
    assert (share == residuals[1]).all()
