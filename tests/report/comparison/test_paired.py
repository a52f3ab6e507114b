"""Paired differences: identities, and standard errors that are known."""

import numpy as np
import pytest

from mpitrain.report.comparison.differences import BlockSums, difference

SAMPLES = np.full(400, 50.0)


def test_a_training_differs_from_itself_by_nothing() -> None:
    one = BlockSums(np.random.default_rng(1).normal(10, 3, 400), SAMPLES)
    told = difference([one], [one])
    assert (told.mean, told.low, told.high) == (0, 0, 0) and told.base == one.mean


def test_what_both_share_does_not_widen_the_interval() -> None:
    """A constant difference on each block is certain, however much the blocks differ."""
    rng = np.random.default_rng(2)
    base = BlockSums(rng.normal(10, 3, 400), SAMPLES)
    told = difference([base], [BlockSums(base.sums + 5, SAMPLES)])
    assert told.mean == pytest.approx(0.1) and told.low == pytest.approx(0.1) and told.high == pytest.approx(0.1)


def test_the_interval_has_the_width_of_the_standard_error() -> None:
    """Of a mean of 400 independent blocks: 1.96 σ/√400 to either side, each divided by the samples of a block."""
    base = BlockSums(np.zeros(400), SAMPLES)
    other = BlockSums(np.random.default_rng(3).normal(5, 2, 400), SAMPLES)
    told = difference([base], [other])
    assert told.high - told.low == pytest.approx(2 * 1.96 * other.sums.std() / 20 / 50, rel=0.05)


def test_seeds_widen_it() -> None:
    """Three seeds a constant apart on all blocks: the standard error of their mean, σ/√3 with n − 1 in σ."""
    base = [BlockSums(np.full(400, 10.0), SAMPLES)]
    other = [BlockSums(np.full(400, 50 * value), SAMPLES) for value in (0.1, 0.2, 0.3)]
    told = difference(base, other)
    assert told.mean == pytest.approx(0.0, abs=1e-12)
    assert told.high - told.low == pytest.approx(2 * 1.96 * 0.1 / np.sqrt(3), rel=0.2)
