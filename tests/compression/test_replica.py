"""Replicas hold the same bits whatever the order of messages, and never a wrapped weight."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpitrain.compression.message import CODECS, WireForm
from mpitrain.compression.replica import apply
from mpitrain.compression.residual import NO_LEVELS, SIGN, Entries, accumulate
from mpitrain.compression.thresholds import (
    COUNT_MAX,
    UNIT,
    greatest_level,
    integer_step,
    round_threshold,
    round_weights,
    unit_quantum,
)
from mpitrain.errors import TrainingFailed

SIZE = 300


def messages(rng, senders, steps, dtype, bits):
    """What every sender sends while η and threshold change, and the exact change of each weight in units."""
    sent, change = [], np.zeros(SIZE, object)
    for sender in range(senders):
        residual, words, levels = np.zeros(SIZE, dtype), np.empty(SIZE, np.uint32), np.empty(SIZE, np.uint32)
        levels = levels if bits > 1 else NO_LEVELS
        for sequence in range(steps):
            threshold, rate = round_threshold(rng.uniform(0.2, 3)), 10 ** rng.uniform(-5, -1)
            gradient = rng.standard_normal(SIZE).astype(dtype)
            quantum = unit_quantum(rate) if bits == 32 else 0.0
            taken = {"levels": levels, "greatest": greatest_level(bits), "quantum": quantum}
            k = accumulate(residual, gradient, words, scale=2, threshold=threshold, limit=4 * threshold, **taken)
            step = 1 if quantum else integer_step(rate, threshold)
            wire, entries = WireForm(SIZE, bits, rng.choice(list(CODECS))), Entries(words[:k], levels[:k])
            sent.append(wire.encode(entries, sender, sequence, step, threshold, np.empty(wire.capacity, np.uint8)))
            for word, level in zip(words[:k].tolist(), levels[:k].tolist() if bits > 1 else [1] * k, strict=True):
                change[word % 2**31] += step * level if word >= 2**31 else -step * level
    return sent, change


def replica(initial, sent, order, bits):
    """Counts and weights after applying the messages in that order."""
    weights, counts = initial.copy(), np.empty(SIZE, np.int32)
    round_weights(weights, counts)
    wire = WireForm(SIZE, bits, "auto")
    for i in order:
        header, received = wire.decode(sent[i], int(sent[i][8]))
        apply(received.words, header.step, counts, weights, received.levels)
    return counts, weights


@pytest.mark.parametrize("bits", [1, 2, 4, 32])
@given(
    st.integers(0, 2**32), st.integers(1, 5), st.integers(1, 4), st.sampled_from([np.float32, np.float64]), st.data()
)
def test_replicas_are_identical_in_any_order(bits, seed, senders, steps, dtype, data):
    rng = np.random.default_rng(seed)
    initial = rng.standard_normal(SIZE).astype(dtype)
    sent, change = messages(rng, senders, steps, dtype, bits)
    counts, weights = replica(initial, sent, range(len(sent)), bits)
    other_counts, other_weights = replica(initial, sent, data.draw(st.permutations(range(len(sent)))), bits)
    assert counts.tobytes() == other_counts.tobytes() and weights.tobytes() == other_weights.tobytes()
    start = np.rint(initial.astype(np.float64) / UNIT).astype(np.int64)
    assert (counts == start + change).all()
    assert (weights == (counts * UNIT).astype(dtype)).all()


def test_a_positive_residual_moves_the_weight_down():
    counts, weights = np.zeros(3, np.int32), np.zeros(3, np.float32)
    apply(np.array([0, 2 | 1 << 31], np.uint32), 5, counts, weights)
    assert counts.tolist() == [-5, 0, 5] and weights.tolist() == [-5 * UNIT, 0.0, 5 * UNIT]


def test_levels_move_weights_by_multiples_of_the_step():
    """Also where a multiple is beyond int32 and the weight is not."""
    counts, weights = np.array([0, COUNT_MAX, 0], np.int32), np.zeros(3, np.float32)
    words, levels = np.array([0, 1, 2 | 1 << 31], np.uint32), np.array([3, 8, 2], np.uint32)
    apply(words, 2**29 - 1, counts, weights, levels)
    assert counts.tolist() == [3 - 3 * 2**29, 2**31 - 1 - 2**32 + 8, 2**30 - 2]
    assert (weights == (counts * UNIT).astype(np.float32)).all()
    before = counts.copy()
    with pytest.raises(TrainingFailed, match="weight 2 "):
        apply(words[2:], 2**29, counts, weights, np.array([3], np.uint32))
    assert (counts == before).all()


@pytest.mark.parametrize("negative", [False, True])
def test_leaving_the_range_changes_nothing(negative):
    counts = np.array([7, COUNT_MAX - 9, 7], np.int32) * (1 if negative else -1)
    weights = (counts * UNIT).astype(np.float32)
    before = counts.copy(), weights.copy()
    words = np.arange(3, dtype=np.uint32) | (SIGN if negative else np.uint32(0))
    with pytest.raises(TrainingFailed, match="weight 1 "):
        apply(words, 10, counts, weights)
    assert (counts == before[0]).all() and (weights == before[1]).all()
    apply(words, 9, counts, weights)
    assert abs(int(counts[1])) == COUNT_MAX


def test_words_beyond_the_replica_are_refused():
    with pytest.raises(ValueError, match="words"):
        apply(np.array([3], np.uint32), 1, np.zeros(3, np.int32), np.zeros(3, np.float32))
