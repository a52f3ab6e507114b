"""Losses by hand, by central differences, and at the ends of the range."""

import numpy as np
import pytest

from mpitrain.models.losses import LOSSES, Loss
from mpitrain.models.workspace import Workspace

from .gradients import differences

TARGETS = np.array([2, 0], np.int32)


def test_softmax_by_hand() -> None:
    """Outputs log 1, log 2, log 5 have probabilities 1/8, 2/8, 5/8."""
    z = np.log([[1.0, 2.0, 5.0], [1.0, 2.0, 5.0]])
    loss = LOSSES["softmax"].loss_and_gradient(z, TARGETS, Workspace())
    assert loss == pytest.approx(np.log(8 / 5) + np.log(8), rel=1e-14)
    np.testing.assert_allclose(z * 2 * 8, [[1, 2, -3], [-7, 2, 5]], rtol=1e-14)


def test_logistic_by_hand() -> None:
    """Outputs log 1, log 3 have probabilities 1/2, 3/4."""
    z = np.log([[1.0, 3.0]])
    loss = LOSSES["logistic"].loss_and_gradient(z, np.array([1]), Workspace())
    assert loss == pytest.approx(np.log(2) + np.log(4 / 3), rel=1e-14)
    np.testing.assert_allclose(z, [[0.5, -0.25]], rtol=1e-14)


@pytest.mark.parametrize("loss", LOSSES.values())
def test_gradient_is_that_of_the_mean(loss: Loss) -> None:
    z = np.random.default_rng(1).standard_normal((2, 4)) * 3
    expected = differences(lambda v: loss.loss(v.reshape(2, 4), TARGETS, Workspace()) / 2, z.ravel())
    alone, both = loss.loss(z.copy(), TARGETS, Workspace()), loss.loss_and_gradient(z, TARGETS, Workspace())
    assert alone == both
    np.testing.assert_allclose(z.ravel(), expected, atol=1e-8)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("loss", "expected"), [(LOSSES["softmax"], 1000.0), (LOSSES["logistic"], 1000.0 + 1000.0)])
def test_great_outputs_do_not_overflow(loss: Loss, expected: float, dtype: type) -> None:
    """The target's output is −1000 lower: softmax loses 2000 − 1000 … with outputs 500, −500; logistic 1000 twice."""
    great = 500.0 if loss.name == "softmax" else 1000.0
    z = np.array([[great, -great]], dtype)
    assert loss.loss_and_gradient(z, np.array([1]), Workspace()) == expected
    np.testing.assert_array_equal(z, [[1, -1]])


@pytest.mark.parametrize("loss", LOSSES.values())
def test_nan_reaches_the_loss(loss: Loss) -> None:
    z = np.zeros((2, 3), np.float32)
    z[1, 1] = np.nan
    assert np.isnan(loss.loss_and_gradient(z, TARGETS, Workspace()))
