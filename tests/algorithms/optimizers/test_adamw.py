"""AdamW: two steps by hand, its special cases, and PyTorch's."""

from typing import Any

import numpy as np
import pytest

from mpitrain.algorithms.optimizers.adamw import adamw

CONSTANTS: dict[str, float] = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "decay": 0.01}


def trained(x: np.ndarray, gradients: np.ndarray, eta: float = 0.01, **constants: float) -> np.ndarray:
    """x after a step for each gradient."""
    x, m, v, scratch = x.copy(), np.zeros_like(x), np.zeros_like(x), np.empty_like(x)
    for t, g in enumerate(gradients):
        adamw(x, m, v, g, scratch, eta=eta, t=t, **{**CONSTANTS, **constants})
    return x


def gradients(steps: int, size: int, dtype: Any = np.float64) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((steps, size)).astype(dtype)


def test_two_steps_by_hand() -> None:
    """η = ½, β₁ = ½, β₂ = ¾, ε = 2, λ = ¼, x = 1, g = 2 and then −2.

    n = 1: m = 1, m̂ = 1/½ = 2; v = ¼·4 = 1, v̂ = 1/¼ = 4; x = 1 − ½(2/(2 + 2) + ¼·1) = 0.625.
    n = 2: m = ½ − 1 = −½, m̂ = −½/¾ = −⅔; v = ¾ + 1 = 7/4, v̂ = (7/4)/(7/16) = 4;
    x = 0.625 − ½(−⅔/4 + ¼·0.625) = 0.625 + 1/12 − 0.078125.
    """
    constants = {"eta": 0.5, "beta1": 0.5, "beta2": 0.75, "epsilon": 2.0, "decay": 0.25}
    one = np.array([1.0])
    assert trained(one, np.array([[2.0]]), **constants) == pytest.approx(0.625, rel=1e-15)
    assert trained(one, np.array([[2.0], [-2.0]]), **constants) == pytest.approx(0.546875 + 1 / 12, rel=1e-15)


@pytest.mark.parametrize("decay", [0.0, 0.01, 1e-9])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_as_pytorch_does_it(decay: float, dtype: Any) -> None:
    torch = pytest.importorskip("torch")
    start, steps = np.linspace(-2, 2, 501).astype(dtype), gradients(50, 501, dtype)
    theta = torch.nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = torch.optim.AdamW([theta], lr=0.01, betas=(0.9, 0.999), eps=1e-8, weight_decay=decay)
    for g in steps:
        theta.grad = torch.from_numpy(g.copy())
        optimizer.step()
    error = np.abs(trained(start, steps, decay=decay) - theta.detach().numpy()).max()
    assert error < 200 * np.finfo(dtype).eps


def test_the_first_step_is_as_long_as_the_rate() -> None:
    """Whatever the gradient: m̂ = g, v̂ = g²."""
    g = np.array([1e-3, -7.0, 1e4])
    np.testing.assert_allclose(trained(np.zeros(3), g[None], decay=0.0), -0.01 * np.sign(g), rtol=1e-4)


def test_without_memory_only_the_sign_counts() -> None:
    g = gradients(9, 50)
    found = trained(np.zeros(50), g, beta1=0.0, beta2=0.0, decay=0.0)
    np.testing.assert_allclose(found, -0.01 * np.sign(g).sum(axis=0), atol=1e-6)


def test_decay_is_not_part_of_the_gradient() -> None:
    """Where there is none, x shrinks by ηλ a step, however small or large it is; and Adam's step does not see λ."""
    x = np.array([1e-6, -1.0, 1e6])
    np.testing.assert_allclose(trained(x, np.zeros((5, 3)), decay=0.1), x * (1 - 0.01 * 0.1) ** 5, rtol=1e-12)
    g = gradients(1, 3)
    np.testing.assert_allclose(trained(x, g, decay=0.1), trained(x, g, decay=0.0) - 0.01 * 0.1 * x, rtol=1e-9)
