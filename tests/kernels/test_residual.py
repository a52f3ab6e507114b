"""Threshold and compact, and the way back: to the bit, in every order of blocks, against reference and CPU."""

from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpitrain.compression import replica
from mpitrain.compression import residual as cpu
from mpitrain.compression.message import WireForm
from mpitrain.compression.thresholds import COUNT_MAX, UNIT, unit_quantum
from mpitrain.errors import TrainingFailed
from mpitrain.kernels.launch import TILE, Kernels
from tests.kernels import reference

NONE = int(reference.NONE)
SIZES = [0, 1, 31, 32, 33, 255, 256, 257, TILE - 1, TILE, TILE + 1, 2 * TILE, 9 * TILE + 5]
#: Thresholds under which everything, a third, a thousandth and nothing of a normal sample is sent.
THRESHOLDS = [2.0**-20, 1.0, 3.25, inf]


def sample(size: int, dtype: type = np.float32) -> tuple[np.ndarray, np.ndarray]:
    """A residual and a gradient, with zeros of both signs, subnormals and large numbers among them."""
    rng = np.random.default_rng(size)
    values, gradient = rng.standard_normal((2, size)).astype(dtype)
    odd = np.array([0.0, -0.0, np.finfo(dtype).smallest_subnormal, -1e-40, 1e30, -1e30], dtype)
    where = rng.random((2, size)) < 0.1
    values[where[0]] = rng.choice(odd, where[0].sum())
    gradient[where[1]] = rng.choice(odd[:4], where[1].sum())
    return values, gradient


def outputs(size: int) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros(size, np.uint32), np.zeros(2, np.uint32)


@pytest.mark.parametrize("size", SIZES)
def test_accumulate(compare: Callable[..., list[Any]], order: int, size: int) -> None:
    for threshold in THRESHOLDS:
        compare("accumulate", *sample(size), *outputs(size), scale=0.3, threshold=threshold)
    for threshold, limit in ((1.5, 2.0), (1.5, 0.5), (inf, 2.0)):
        compare("accumulate", *sample(size), *outputs(size), scale=3.0, threshold=threshold, limit=limit)
    compare("accumulate", *sample(size, np.float64), *outputs(size), scale=1 / 3, threshold=1.5)


#: Settings of elements of 2 and 4 bits, and unquantised.
BITS = [{"greatest": 2}, {"greatest": 8}, {"greatest": COUNT_MAX, "quantum": unit_quantum(0.05)}]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("bits", BITS)
def test_accumulate_with_levels(
    compare: Callable[..., list[Any]], order: int, bits: dict[str, Any], dtype: type
) -> None:
    """On the CPU, too; with a limit that bounds what is emitted, what is not, and what is withheld."""
    size = 2 * TILE + 37
    residual, gradient = sample(size, dtype)
    residual[40:48] = np.array([1, 2, 3, 8, 9, -2, -3, 1.5]) * 0.75  # exact multiples, and halves
    gradient[40:48] = 0
    for threshold, limit in ((0.75, inf), (0.75, 0.5), (inf, 0.5), (2.0**-20, inf)):
        levels = np.zeros(size, np.uint32)
        settings = {"scale": 0.3, "threshold": threshold, "limit": limit, **bits}
        after = compare("accumulate", residual, gradient, *outputs(size), levels, **settings)
        ours = residual.copy(), *outputs(size)[:1], levels.copy()
        count = cpu.accumulate(ours[0], gradient, ours[1], levels=ours[2], **settings)
        assert count == after[3][0]
        for mine, theirs in zip(ours, (after[0], after[2], after[-1]), strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("limit", [0.5, 2.0])
@pytest.mark.parametrize("threshold", THRESHOLDS)
def test_the_reference_is_the_cpus_pass(threshold: float, limit: float, dtype: type) -> None:
    residual, gradient = sample(1000, dtype)
    ours, theirs = residual.copy(), residual.copy()
    words, result = outputs(1000)
    reference.accumulate(ours, gradient, words, result, scale=0.3, threshold=threshold, limit=limit)
    cpu_words = np.zeros_like(words)
    count = cpu.accumulate(theirs, gradient, cpu_words, scale=0.3, threshold=threshold, limit=limit)
    assert tuple(result) == (count, NONE)
    np.testing.assert_array_equal(words, cpu_words)
    np.testing.assert_array_equal(ours, theirs)


@settings(max_examples=15, derandomize=True)
@given(
    hits=st.lists(st.tuples(st.integers(0, 3 * TILE - 1), st.booleans()), max_size=40),
    size=st.integers(1, 3 * TILE),
    seed=st.integers(0, 1000),
)
def test_words_come_in_order_and_nothing_is_lost(
    xp: Any, kernels: Kernels, hits: list[tuple[int, bool]], size: int, seed: int
) -> None:
    """Wherever the elements lie and whatever the order: their indices, ascending; sent + residual = accumulated."""
    before = np.zeros(size, np.float32)
    for index, negative in hits:
        before[index % size] = -2.75 if negative else 2.75
    words, result = outputs(size)
    residual, device_words, device_result = map(xp.asarray, (before, words, result))
    if hasattr(xp, "Order"):
        xp.Order.seed = seed
    kernels.accumulate(residual, xp.zeros(size, np.float32), device_words, device_result, scale=1, threshold=2.5)
    count, lost = map(int, device_result.get())
    sent = device_words.get()[:count]
    assert lost == NONE
    np.testing.assert_array_equal(sent & reference.SIGN - 1, np.flatnonzero(before))
    total = residual.get()
    total[sent & cpu.INDEX] += np.where(sent & cpu.SIGN, -2.5, 2.5).astype(np.float32)
    np.testing.assert_array_equal(total, before)
    # A codec takes the words as they are.
    wire = WireForm(size, 1, "packed")
    wire.encode(cpu.Entries(sent), 0, 0, 1, 2.5, np.zeros(wire.capacity, np.uint8))


@pytest.mark.parametrize("threshold", [1.0, inf])
def test_what_is_not_finite_is_named(compare: Callable[..., list[Any]], order: int, threshold: float) -> None:
    """The first of them, as on the CPU; infinity passes where nothing is sent or clipped."""
    residual, gradient = (np.zeros(2 * TILE, np.float32) for _ in range(2))
    residual[[70, TILE + 5]] = np.nan
    residual[40] = -np.inf
    result = compare("accumulate", residual, gradient, *outputs(2 * TILE), scale=1.0, threshold=threshold)[3]
    assert result[1] == (40 if threshold == 1.0 else 70)
    with pytest.raises(TrainingFailed, match=f"element {result[1]} "):
        cpu.accumulate(residual, gradient, outputs(2 * TILE)[0], scale=1.0, threshold=threshold)


def test_infinity_is_not_clipped_to_a_number(xp: Any, kernels: Kernels) -> None:
    """It is named where nothing is sent, too."""
    residual, gradient = (np.zeros(2 * TILE, np.float32) for _ in range(2))
    residual[[40, TILE + 5]] = -np.inf
    settings = {"scale": 1.0, "threshold": inf, "limit": 9.0}
    for functions, module in ((kernels, xp), (reference, np)):
        arrays = [module.asarray(each.copy()) for each in (residual, gradient, *outputs(2 * TILE))]
        functions.accumulate(*arrays, **settings)
        assert arrays[3][1] == 40
    with pytest.raises(TrainingFailed, match="element 40 "):
        cpu.accumulate(residual, gradient, outputs(2 * TILE)[0], **settings)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 9000])
def test_apply(compare: Callable[..., list[Any]], size: int, dtype: type) -> None:
    rng = np.random.default_rng(size)
    counts = rng.integers(-(2**30), 2**30, 2 * size + 1).astype(np.int32)
    weights = (counts * UNIT).astype(dtype)
    index = np.sort(rng.permutation(counts.size)[:size]).astype(np.uint32)
    words = index | rng.integers(0, 2, size).astype(np.uint32) << 31
    failed = np.array([NONE], np.uint32)
    applied = compare("apply", words, 12345, counts, weights, failed)
    replica.apply(words, 12345, counts, weights)
    np.testing.assert_array_equal(applied[2], counts)
    np.testing.assert_array_equal(applied[3], weights)
    assert applied[4] == NONE
    levels = rng.integers(1, 9, size, np.uint32)
    applied = compare("apply", words, 12345, counts, weights, failed, levels)
    replica.apply(words, 12345, counts, weights, levels)
    np.testing.assert_array_equal(applied[2], counts)
    np.testing.assert_array_equal(applied[3], weights)


def test_a_message_is_applied_whole_or_not_at_all(compare: Callable[..., list[Any]], xp: Any, kernels: Kernels) -> None:
    counts = np.array([5, COUNT_MAX - 1, 7, 1 - COUNT_MAX], np.int32)
    weights = (counts * UNIT).astype(np.float32)
    plus, minus = np.arange(4, dtype=np.uint32) | reference.SIGN, np.arange(4, dtype=np.uint32)
    for words, first in ((plus, 1), (minus, 3)):
        after = compare("apply", words, 2, counts, weights, np.array([NONE], np.uint32))
        np.testing.assert_array_equal(after[2], counts)
        assert after[4] == first
        with pytest.raises(TrainingFailed, match=f"weight {first} "):
            replica.apply(words, 2, counts.copy(), weights.copy())
        levels = np.array([1, 2, 2**31 - 1, 2], np.uint32)
        after = compare("apply", words, 1, counts, weights, np.array([NONE], np.uint32), levels)
        np.testing.assert_array_equal(after[2], counts)
        assert after[4] == first
    # Nothing is applied after a failure, and the limits themselves can be reached.
    compare("apply", plus, 1, counts, weights, np.array([3], np.uint32))
    compare("apply", plus, 1, counts, weights, np.array([NONE], np.uint32))
