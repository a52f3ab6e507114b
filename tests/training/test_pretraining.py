"""Growing networks, both ways of pre-training, and what a run does with them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpitrain.config import Pretraining
from mpitrain.data.corpus import Corpus
from mpitrain.data.digits import embedded
from mpitrain.errors import BadInput
from mpitrain.models.network import build
from mpitrain.sampling.batch import Batch
from mpitrain.signals import STOPPED
from mpitrain.training.pretraining import PretrainingTask, depth, grown, kept, machine_step, require_fit, steps
from tests.faults import Fault, program


@pytest.fixture(scope="module")
def corpus() -> Any:
    """The digits."""
    return Corpus(embedded(), "train", context=[], dtype=np.dtype(np.float64), memory_limit=1 << 30)


def sigmoids(layers: int, width: float = 0.01) -> Any:
    """A network of narrow sigmoid layers on the digits."""
    return build("zhang2013-dnn", (8, 8, 1), 10, width=width, hidden_layers=layers)


@pytest.mark.parametrize("preset", ["zhang2013-dnn", "digits-cnn", "chan2014-dnn"])
def test_a_grown_network_is_the_lower_part_under_an_output(preset: str) -> None:
    """Parameters of the hidden layers lie where they lie in the whole; grown to its depth it is the whole."""
    network = build(preset, (8, 8, 1), 10, width=0.02)
    rng = np.random.default_rng(1)
    batch = Batch(rng.standard_normal((3, 8, 8, 1)), np.array([1, 2, 3], np.int32))
    theta = network.initial(1, np.float64)
    for count in range(1, depth(network) + 1):
        small = grown(network, count)
        part = kept(network, count)
        assert part.stop < small.layout.size and small.classes == 10
        lower = [p.shape for p in small.layout.parameters if small.layout.slices[p.name].stop <= part.stop]
        assert lower == [p.shape for p in network.layout.parameters][: len(lower)] and len(lower) == 2 * count
    assert small.layout.size == network.layout.size
    assert small.evaluate(theta, batch) == network.evaluate(theta, batch)


def test_layer_by_layer_in_order(corpus: Any) -> None:
    """While layer k is new, no layer above it changes; what a stage learnt is where the next one starts."""
    network = sigmoids(3)
    theta = network.initial(1, np.float64)
    before = theta.copy()
    options = Pretraining(method="layerwise", epochs=0.2, learning_rate=0.5)
    seen = []
    for step in steps(PretrainingTask(network, corpus, theta, options, 1)):
        seen.append(step.layer)
        above = kept(network, step.layer - 1).stop if step.layer < 3 else theta.size
        assert np.array_equal(theta[above:], before[above:])
    assert seen == sorted(seen) and set(seen) == {1, 2, 3}
    assert all(
        not np.array_equal(view, network.layout.views(before)[name])
        for name, view in network.layout.views(theta).items()
    )


def test_one_hidden_layer_is_plain_sgd(corpus: Any) -> None:
    """The only stage is the network itself: θ ← θ − η·gradient from its own initial weights."""
    network = sigmoids(1)
    theta = network.initial(1, np.float64)
    plain, gradient = theta.copy(), np.empty_like(theta)
    options = Pretraining(method="layerwise", epochs=0.1, learning_rate=0.3, minibatch=30)
    for learner, work in PretrainingTask(network, corpus, theta, options, 7).minibatches(sigmoids(1), 1):
        learner.gradient(plain, gradient, work)
        plain -= 0.3 * gradient
    assert [step.samples for step in steps(PretrainingTask(network, corpus, theta, options, 7))] == [30, 30, 30, 30, 24]
    assert np.allclose(theta, plain, rtol=1e-14, atol=0)


def test_layerwise_pretraining_learns(corpus: Any) -> None:
    """The loss of the deepest stage ends well below that of guessing, log 10."""
    network = sigmoids(4, width=0.05)
    theta = network.initial(1, np.float64)
    options = Pretraining(method="layerwise", epochs=4, learning_rate=0.5, minibatch=32)
    losses = [step.loss for step in steps(PretrainingTask(network, corpus, theta, options, 1))]
    assert np.mean(losses[-20:]) < 0.5 * np.log(10)


@pytest.mark.parametrize("gaussian", [True, False])
def test_contrastive_divergence_by_hand(gaussian: bool) -> None:
    """One visible and one hidden unit, two examples, in plain arithmetic."""
    w, b, a, eta = 0.5, -0.25, 0.125, 0.1
    weights, hidden, visible = np.array([[w]]), np.array([b]), np.array([a])
    squash = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731
    up, down, again, vs = [], [], [], [0.75, 0.25]
    for v, draw in zip(vs, [0.1, 0.9], strict=True):
        up.append(squash(v * w + b))
        h = float(draw < up[-1])
        down.append(h * w + a if gaussian else squash(h * w + a))
        again.append(squash(down[-1] * w + b))
    given = np.array(vs)[:, None], np.array([[0.1], [0.9]])
    loss = machine_step(weights, hidden, visible, *given, eta=eta, gaussian=gaussian)
    moved = sum(v * p - d * q for v, p, d, q in zip(vs, up, down, again, strict=True)) / 2
    assert weights[0, 0] == pytest.approx(w + eta * moved, rel=1e-14)
    assert hidden[0] == pytest.approx(b + eta * (sum(up) - sum(again)) / 2, rel=1e-14)
    assert visible[0] == pytest.approx(a + eta * (sum(vs) - sum(down)) / 2, rel=1e-14)
    assert loss == pytest.approx(sum((v - d) ** 2 for v, d in zip(vs, down, strict=True)) / 2, rel=1e-14)


def test_contrastive_divergence_learns_to_reconstruct(corpus: Any) -> None:
    """At every layer; the output layer is left alone."""
    network = sigmoids(2, width=0.05)
    theta = network.initial(1, np.float64)
    before = theta.copy()
    options = Pretraining(method="contrastive-divergence", epochs=6, learning_rate=0.5, minibatch=32)
    losses: dict[int, list[float]] = {1: [], 2: []}
    for step in steps(PretrainingTask(network, corpus, theta, options, 1)):
        losses[step.layer].append(step.loss)
    assert all(np.mean(each[-20:]) < 0.8 * np.mean(each[:20]) for each in losses.values())
    assert np.array_equal(theta[kept(network, 2).stop :], before[kept(network, 2).stop :])


def test_a_machine_starts_from_small_weights_of_its_own(corpus: Any) -> None:
    """With a rate that moves nothing: normal with a standard deviation of 0.01 and biases of 0, for every layer."""
    network = sigmoids(2, width=0.1)
    theta = network.initial(1, np.float64)
    assert network.layout.views(theta)["fc2.weights"].std() > 0.1  # the network's own
    options = Pretraining(method="contrastive-divergence", epochs=0.01, learning_rate=1e-60)
    assert list(steps(PretrainingTask(network, corpus, theta, options, 1)))
    views = network.layout.views(theta)
    for layer in (1, 2):
        assert views[f"fc{layer}.weights"].std() == pytest.approx(0.01, rel=0.05)
        assert np.abs(views[f"fc{layer}.bias"]).max() < 1e-50
    assert not np.array_equal(views["fc1.weights"].ravel()[:9], views["fc2.weights"].ravel()[:9])


def test_networks_that_do_not_fit_are_bad_input() -> None:
    """Named by the key."""
    with pytest.raises(BadInput, match=r"pretraining\.method"):
        require_fit(Pretraining(method="contrastive-divergence"), build("digits-cnn", (8, 8, 1), 10))
    require_fit(Pretraining(method="layerwise"), build("digits-cnn", (8, 8, 1), 10))
    require_fit(Pretraining(method="contrastive-divergence"), sigmoids(3))


@pytest.mark.parametrize("method", ["layerwise", "contrastive-divergence"])
def test_a_run_starts_from_the_pretrained_weights(launch: Callable[..., Any], tmp_path: Path, method: str) -> None:
    """On any number of ranks and from any order of samples the same ones, which model.seed determines: a training with
    a rate that rounds to nothing leaves their bits."""
    network = (
        "model.preset=zhang2013-dnn",
        "model.width=0.02",
        "model.hidden_layers=2",
        f"pretraining.method={method}",
    )
    rest = (
        "pretraining.samples=300",
        "training.learning_rate=1e-60",
        "training.epochs=0.1",
        "algorithm.name=allreduce",
        "model.seed=5",
    )
    settings = [word for setting in (*network, *rest) for word in ("--set", setting)]
    hashes = set()
    for ranks in (1, 3):
        ended = launch(ranks, *settings, "--set", f"training.seed={ranks}", "--out", f"run{ranks}")
        assert ended.status == 0, ended.err
        folder = tmp_path / f"run{ranks}"
        hashes.add(json.loads((folder / "summary.json").read_text())["parameters_sha256"])
        events = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert [event["layer"] for event in events if event["event"] == "pretraining"] == [1, 2]
    assert len(hashes) == 1


def test_a_signal_to_any_rank_ends_it(launch: Callable[..., Any], tmp_path: Path) -> None:
    """In the middle of a layer, of which nothing is told; there is no checkpoint, and none is promised."""
    told = program(Fault("mpitrain.api.train.stand_by", ["stop"], rank=1))
    keys = (
        "model.preset=zhang2013-dnn",
        "model.width=0.02",
        "pretraining.method=layerwise",
        "pretraining.epochs=100000",
    )
    ended = launch(3, *(word for key in keys for word in ("--set", key)), "--out", "run", program=told)
    assert ended.status == STOPPED, ended.err
    assert "layer 1 of 5 stopped" in ended.out and "left no checkpoint" in ended.out and "--resume" not in ended.out
    assert '"pretraining"' not in (tmp_path / "run" / "metrics.jsonl").read_text()
    assert not (tmp_path / "run" / "checkpoints").exists()
