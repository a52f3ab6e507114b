"""Krizhevsky's update of a rank's own parameters."""

import numpy as np

from mpitrain.algorithms import Hybrid
from mpitrain.flat import Layout, Parameter
from mpitrain.protocols.hybrid_update import Update


def test_biases_move_at_a_rate_of_their_own() -> None:
    """`bias_rate` times what the stages have made of it beside the weights' rate; without decay."""
    options = Hybrid(momentum=0.0, weight_decay=0.5, bias_rate=2.0, scaling="none")
    layout = Layout([Parameter("w", (2,), ("constant", 0.0)), Parameter("b", (1,), ("constant", 0.0), decay=False)])
    theta, velocity, gradient = np.ones(3), np.zeros(3), np.full(3, 3.0)
    Update(options, layout, theta, velocity, gradient, 0.0)(["w", "b"], 0.1, 4, 0.25)
    np.testing.assert_allclose(theta, [1 - 0.1 * 3 - 0.1 * 0.5] * 2 + [1 - 0.1 * 2 * 0.25 * 3], rtol=1e-12)


def test_the_networks_penalty_is_added_to_the_weights_decay_and_may_act_on_biases() -> None:
    options = Hybrid(momentum=0.0, weight_decay=0.5, bias_rate=2.0, scaling="none")
    layout = Layout([Parameter("w", (1,), ("constant", 0.0)), Parameter("b", (1,), ("constant", 0.0), decay=False)])
    theta, velocity, gradient = np.full(2, 10.0), np.zeros(2), np.zeros(2)
    Update(options, layout, theta, velocity, gradient, 0.25, 0.25)(["w", "b"], 0.1, 4)
    np.testing.assert_allclose(theta, [10 - 0.1 * (0.5 + 0.25) * 10, 10 - 0.1 * 2 * 0.25 * 10], rtol=1e-12)
