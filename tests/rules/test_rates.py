"""Learning rate laws."""

import pytest

from mpitrain.rules import rates


def test_decay_with_time() -> None:
    assert rates.decayed(0.1, 0, 1e-3) == 0.1
    assert rates.decayed(0.1, 3000, 1e-3) == pytest.approx(0.05)


def test_theory_keeps_variance_and_total_decay() -> None:
    """k = 4: √k = 2; one decay factor 1 − ε′ω′ equals four of 1 − εω."""
    eta, decay = rates.scaled_by_theory(0.5, 0.25, 4)
    assert eta == 1.0
    assert 1 - eta * decay == pytest.approx((1 - 0.125) ** 4, rel=1e-14)
    assert rates.scaled_by_theory(0.01, 5e-4, 1) == pytest.approx((0.01, 5e-4), rel=1e-14)


def test_theory_for_small_decay_is_sqrt_k_omega() -> None:
    """The paper's approximation ω′ ≈ √k·ω."""
    assert rates.scaled_by_theory(0.01, 5e-4, 8)[1] == pytest.approx(8**0.5 * 5e-4, rel=2e-5)
    assert rates.scaled_by_theory(1e-9, 1e-9, 4)[1] == pytest.approx(2e-9, rel=1e-12)


def test_practice_scales_the_rate_alone() -> None:
    assert rates.scaled_in_practice(0.01, 5e-4, 8) == (0.08, 5e-4)
