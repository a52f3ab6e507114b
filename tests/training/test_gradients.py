"""Gradients of minibatches in parts."""

from typing import Literal

import numpy as np
import pytest

from mpitrain.data.corpus import Corpus
from mpitrain.data.digits import embedded
from mpitrain.device.cpu import CPU
from mpitrain.models.model import Consumer
from mpitrain.models.network import build
from mpitrain.sampling.queue import Work
from mpitrain.sampling.stages import Training
from mpitrain.training.gradients import Learner, clip


def learner(parts: int = 1, per_sample: bool = False, clip_norm: float = 0.0) -> Learner:
    """Of a network with dropout, in float64."""
    network = build("digits-cnn", (8, 8, 1), 10, width=0.5, dropout=0.25, workspace=CPU.workspace())
    corpus = Corpus(embedded(), "train", dtype=np.dtype(np.float64))
    per: Literal["sample", "minibatch"] = "sample" if per_sample else "minibatch"
    how = Training(seed=3, dtype="float64", rate_per=per, accumulate=parts, clip_norm=clip_norm)
    return Learner(network, corpus, how)


@pytest.mark.parametrize("parts", [2, 5, 24, 50])
@pytest.mark.parametrize("per_sample", [False, True])
def test_a_gradient_in_parts_is_the_same(parts: int, per_sample: bool) -> None:
    """With the dropout of the whole minibatch, also in what is handed over as it gets ready."""
    whole, divided = learner(1, per_sample=per_sample), learner(parts, per_sample=per_sample)
    theta = whole.network.initial(1, np.float64)
    wanted, found, seen = (np.full_like(theta, np.nan) for _ in range(3))
    for work in (Work(0, 24, 24, 24), Work(0, 48, 24, 24)):
        loss = whole.gradient(theta, wanted, work)

        def use(part: slice, g: np.ndarray) -> None:
            seen[part] = g

        assert divided.gradient(theta, found, work, Consumer(found, use)) == pytest.approx(loss, rel=1e-12)
        np.testing.assert_allclose(seen, wanted, rtol=1e-9, atol=1e-12)


def test_a_share_in_parts_is_the_same() -> None:
    """Of a minibatch that ranks divide."""
    whole, divided = learner(1), learner(3)
    theta = whole.network.initial(1, np.float64)
    wanted, found = np.empty_like(theta), np.empty_like(theta)
    work = Work(1, 0, 32, 32)
    for part in range(2):
        loss = whole.scaled_gradient(theta, wanted, work.share(part, 2), 0.5, whole=work)
        assert divided.scaled_gradient(theta, found, work.share(part, 2), 0.5, whole=work) == pytest.approx(loss)
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("norm", [0.1, 1e3])
@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize("parts", [1, 4])
def test_a_clipped_gradient_is_pytorchs(norm: float, per_sample: bool, parts: int) -> None:
    """Of the mean; a norm that is not reached changes nothing."""
    torch = pytest.importorskip("torch", reason="needs PyTorch (the extra mpitrain[torch])")
    plain, clipped = learner(), learner(parts, per_sample=per_sample, clip_norm=norm)
    theta, work = plain.network.initial(1, np.float64), Work(0, 0, 24, 24)
    wanted, found = np.empty_like(theta), np.empty_like(theta)
    plain.gradient(theta, wanted, work)
    parameter = torch.nn.Parameter(torch.from_numpy(theta))
    parameter.grad = torch.from_numpy(wanted)
    torch.nn.utils.clip_grad_norm_([parameter], norm)
    ready = []
    clipped.gradient(theta, found, work, ready.append)
    np.testing.assert_allclose(found / (24 if per_sample else 1), wanted, rtol=1e-9, atol=1e-12)
    assert ready == [slice(0, theta.size)]


def test_a_gradient_that_is_not_finite_is_left_alone() -> None:
    """Whoever gets it refuses it."""
    for odd in (np.inf, np.nan):
        g = np.array([1.0, odd, 2.0])
        clip(g, 0.1)
        assert g[0] == 1 and g[2] == 2 and not np.isfinite(g[1])
