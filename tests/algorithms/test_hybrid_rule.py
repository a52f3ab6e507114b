"""Krizhevsky's update of a rank's own parameters, and its learning rates."""

import numpy as np
import pytest

from mpitrain.algorithms import hybrid
from mpitrain.algorithms.hybrid import Hybrid, HybridRule
from mpitrain.flat import Layout, Parameter


def test_biases_move_at_a_rate_of_their_own() -> None:
    """`bias_rate` times what the stages have made of it beside the weights' rate; without decay."""
    options = Hybrid(momentum=0.0, weight_decay=0.5, bias_rate=2.0, scaling="none")
    layout = Layout([Parameter("w", (2,), ("constant", 0.0)), Parameter("b", (1,), ("constant", 0.0), decay=False)])
    theta, velocity, gradient = np.ones(3), np.zeros(3), np.full(3, 3.0)
    HybridRule(options, layout, theta, velocity, gradient, 0.0)(["w", "b"], 0.1, 4, 0.25)
    np.testing.assert_allclose(theta, [1 - 0.1 * 3 - 0.1 * 0.5] * 2 + [1 - 0.1 * 2 * 0.25 * 3], rtol=1e-12)


def test_the_networks_penalty_is_added_to_the_weights_decay_and_may_act_on_biases() -> None:
    options = Hybrid(momentum=0.0, weight_decay=0.5, bias_rate=2.0, scaling="none")
    layout = Layout([Parameter("w", (1,), ("constant", 0.0)), Parameter("b", (1,), ("constant", 0.0), decay=False)])
    theta, velocity, gradient = np.full(2, 10.0), np.zeros(2), np.zeros(2)
    HybridRule(options, layout, theta, velocity, gradient, 0.25, 0.25)(["w", "b"], 0.1, 4)
    np.testing.assert_allclose(theta, [10 - 0.1 * (0.5 + 0.25) * 10, 10 - 0.1 * 2 * 0.25 * 10], rtol=1e-12)


def test_theory_keeps_variance_and_total_decay() -> None:
    """k = 4: √k = 2; one decay factor 1 − ε′ω′ equals four of 1 − εω."""
    eta, decay = hybrid.scaled_by_theory(0.5, 0.25, 4)
    assert eta == 1.0
    assert 1 - eta * decay == pytest.approx((1 - 0.125) ** 4, rel=1e-14)
    assert hybrid.scaled_by_theory(0.01, 5e-4, 1) == pytest.approx((0.01, 5e-4), rel=1e-14)


def test_theory_for_small_decay_is_sqrt_k_omega() -> None:
    """The paper's approximation ω′ ≈ √k·ω."""
    assert hybrid.scaled_by_theory(0.01, 5e-4, 8)[1] == pytest.approx(8**0.5 * 5e-4, rel=2e-5)
    assert hybrid.scaled_by_theory(1e-9, 1e-9, 4)[1] == pytest.approx(2e-9, rel=1e-12)


def test_practice_scales_the_rate_alone() -> None:
    assert Hybrid(base_batch=16).scaled(0.01, 5e-4, 128) == (0.08, 5e-4)
