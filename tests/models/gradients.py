"""Central differences, for the layers' and networks' gradients in float64."""

from collections.abc import Callable

import numpy as np

from mpitrain.flat import Array, Layout
from mpitrain.models.layer import Layer, Shape
from mpitrain.models.model import Draws

STEP = 1e-6


def differences(function: Callable[[Array], float], x: Array) -> Array:
    """The gradient of `function` at x [n], one element at a time."""
    gradient = np.empty_like(x)
    for i in range(x.size):
        up, down = x.copy(), x.copy()
        up[i] += STEP
        down[i] -= STEP
        gradient[i] = (function(up) - function(down)) / (2 * STEP)
    return gradient


def directional_error(function: Callable[[Array], float], x: Array, gradient: Array, directions: int = 4) -> float:
    """The greatest relative error of `gradient` along random directions."""
    rng = np.random.default_rng(11)
    errors = []
    for _ in range(directions):
        d = rng.standard_normal(x.size)
        d /= np.linalg.norm(d)
        slope = (function(x + STEP * d) - function(x - STEP * d)) / (2 * STEP)
        errors.append(abs(slope - gradient @ d) / max(abs(slope), 1e-6))
    return max(errors)


def check_layer(layer: Layer, input_shape: Shape, n: int = 3) -> None:
    """Every element of a layer's input and parameter gradients, for the loss Σ c·y with random c."""
    rng = np.random.default_rng(5)
    output_shape = layer.connect(input_shape, "layer")
    layout = Layout(layer.parameters)
    x, p = rng.standard_normal((n, *input_shape)), rng.standard_normal(layout.size)
    c = rng.standard_normal((n, *output_shape))

    def loss(x: Array, p: Array) -> float:
        return float((layer.forward(layout.views(p), x.copy(), True, Draws(np.random.default_rng(9))) * c).sum())

    loss(x, p)
    gradient = np.full_like(p, np.nan)
    dx = layer.backward(layout.views(p), layout.views(gradient), c.copy(), need_dx=True)
    assert dx is not None and dx.shape == x.shape
    dx = dx.copy()
    if p.size:
        loss(x, p)
        np.testing.assert_allclose(gradient, differences(lambda q: loss(x, q), p), rtol=1e-6, atol=1e-7)
    expected = differences(lambda q: loss(q.reshape(x.shape), p), x.ravel())
    np.testing.assert_allclose(dx.ravel(), expected, rtol=1e-6, atol=1e-7)
