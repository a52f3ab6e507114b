"""Block momentum: its rules by hand, and the identities between its settings."""

import numpy as np
import pytest

from mpitrain import config as configuration
from mpitrain.algorithms.block_momentum import BlockRule
from mpitrain.algorithms.optimizers import plain
from mpitrain.algorithms.optimizers.outer import OuterMomentum
from mpitrain.flat import Array, blocks

ETA = 0.25


class Ranks:
    """`p` ranks and their common Θ and v in one process: the sums over ranks are made here. F = x²/2."""

    def __init__(self, theta: Array, p: int, *settings: str) -> None:
        options = configuration.load(None, ["algorithm.name=block-momentum", *settings]).algorithm
        self.vectors = {"theta": theta.copy(), **options.beside(theta)}
        self.rules = [options.averaging(theta, self.vectors, p, plain) for _ in range(p)]

    @property
    def theta(self) -> Array:
        return self.vectors["theta"]

    def step(self, t: int, gradients: list[Array] | None = None, block: int = 1000) -> None:
        """A local step of each rank, and what is due after it."""
        for i, rule in enumerate(self.rules):
            g = rule.at.copy() if gradients is None else gradients[i]
            for b in blocks(g.size, block):
                rule.step(b, g[b], ETA, t, False)
        if self.rules[0].due(t):
            self.exchange(block)

    def exchange(self, block: int = 1000) -> None:
        for parts in zip(*(rule.summed for rule in self.rules), strict=True):
            total = np.sum(parts, axis=0)
            for part in parts:
                part[:] = total
        before = {name: vector.copy() for name, vector in self.vectors.items()}
        for rule in self.rules:  # each holds its own Θ and v, which stay alike
            self.vectors = {name: vector.copy() for name, vector in before.items()}
            rule.begin(ETA, len(self.rules))
            for b in blocks(self.theta.size, block):
                rule.take(b, {name: vector[b] for name, vector in self.vectors.items()}, len(self.rules))


def test_by_hand() -> None:
    """μ = ½, ζ = 1, τ = 1, η = ¼, two ranks that start at 8; all numbers are exact in binary.

    g = 8, 16: x = 6, 4; Δ = 5 − 8 = −3 = v; Θ = 5. g = 4, 4: x = 4; Δ = −1; v = −1.5 − 1 = −2.5; Θ = 2.5.
    """
    ranks = Ranks(np.array([8.0]), 2, "algorithm.tau=1", "algorithm.momentum=0.5")
    for t, pair in enumerate(((8.0, 16.0), (4.0, 4.0))):
        ranks.step(t, [np.array([g]) for g in pair])
    assert ranks.theta == [2.5] and ranks.vectors["velocity"] == [-2.5]


def test_bmuf_with_look_ahead_by_hand() -> None:
    """The same; after the first block ranks start at 5 + ½·(−3) = 3.5, from which Δ is measured.

    g = 4, 4: x = 2.5; Δ = −1; v = −1.5 − 1 = −2.5; Θ = 2.5.
    """
    ranks = Ranks(np.array([8.0]), 2, "algorithm.preset=bmuf", "algorithm.tau=1")
    assert ranks.rules[0].vectors["x"] == [8.0]
    ranks.step(0, [np.array([8.0]), np.array([16.0])])
    assert ranks.rules[0].at == ranks.rules[1].at == [3.5]
    ranks.step(1, [np.array([4.0]), np.array([4.0])])
    assert ranks.theta == [2.5] and ranks.rules[0].at == [1.25]


def test_the_momentum_of_a_shortened_period_is_shortened_by_hand() -> None:
    """τ = 2, μ = ½, η = ¼, and one step left: μ·½ = ¼. First two steps of g = 8 by both ranks from 8: x = 4, v = −4.

    Ranks start at 4; g = 4: x = 3, Δ = −1; v = −1 − 1 = −2; Θ = 2. Without momentum the mean of the ranks stays: 3.
    Ranks that start ahead, at 4 + ½·(−4) = 2: x = 1, Δ = −1; v and Θ are the same.
    """
    for momentum, start, expected in ((0.5, "none", 2.0), (0.0, "none", 3.0), (0.5, "start", 2.0)):
        keys = (f"algorithm.momentum={momentum}", f"algorithm.look_ahead={start}")
        ranks = Ranks(np.array([8.0]), 2, "algorithm.tau=2", *keys)
        for t in range(2):
            ranks.step(t, [np.array([8.0])] * 2)
        assert ranks.theta == [4.0]
        for rule in ranks.rules:
            rule.step(slice(0, 1), np.array([4.0]), ETA, 2, False)
            rule.shorten(1)
        ranks.exchange()
        assert ranks.theta == [expected]


def test_a_last_period_that_is_longer_has_the_whole_momentum() -> None:
    """As after a resume with a smaller τ."""
    (rule,) = Ranks(np.array([8.0]), 1, "algorithm.tau=2", "algorithm.momentum=0.5").rules
    rule.shorten(3)
    assert rule.outer.momentum == 0.5


def test_diloco_is_nesterov_s_sgd_on_minus_delta() -> None:
    """v ← μv + Δ; Θ ← Θ + ζ(Δ + μv), against whole arrays."""
    start, rng = np.linspace(-2, 2, 50), np.random.default_rng(1)
    ranks = Ranks(start, 3, "algorithm.preset=diloco", "algorithm.tau=2", "training.optimizer=sgd")
    theta, v = start.copy(), np.zeros(50)
    for block in range(4):
        x = [theta.copy() for _ in range(3)]
        for t in (2 * block, 2 * block + 1):
            gradients = [rng.standard_normal(50) for _ in range(3)]
            ranks.step(t, gradients)
            x = [each - ETA * g for each, g in zip(x, gradients, strict=True)]
        delta = np.mean(x, axis=0) - theta
        v = 0.9 * v + delta
        theta = theta + 0.7 * (delta + 0.9 * v)
        np.testing.assert_allclose(ranks.theta, theta, rtol=1e-12)


def test_slowmo_at_a_rate_of_zero_keeps_what_the_ranks_have_moved() -> None:
    """μ = ½, ζ = 0.8, Δ = 2, v = 2 without a unit: v = 1, and Θ = 10 + 0.8·2, the limit of a falling rate."""
    theta, v = np.array([10.0]), np.array([2.0])
    OuterMomentum(0.5, 0.8, "none", True).step(theta, v, np.array([12.0]), np.empty(1), 0.0)
    assert (theta[0], v[0]) == (11.6, 1.0)


def test_slowmo_at_a_constant_rate_is_classical_block_momentum() -> None:
    start = np.linspace(-2, 2, 50)
    slow = Ranks(start, 3, "algorithm.preset=slowmo", "algorithm.tau=2")
    block = Ranks(start, 3, "algorithm.momentum=0.7", "algorithm.tau=2")
    rng = np.random.default_rng(2)
    for t in range(8):
        gradients = [rng.standard_normal(50) for _ in range(3)]
        for each in (slow, block):
            each.step(t, gradients)
    np.testing.assert_allclose(slow.theta, block.theta, rtol=1e-12)


def test_without_momentum_every_step_averaged_is_synchronous_sgd() -> None:
    """μ = 0, ζ = 1, τ = 1."""
    start, rng = np.linspace(-2, 2, 50), np.random.default_rng(3)
    ranks, theta = Ranks(start, 4, "algorithm.momentum=0", "algorithm.tau=1"), start.copy()
    for t in range(20):
        noise = rng.standard_normal((4, 50))
        ranks.step(t, [theta + each for each in noise])
        theta -= ETA * (theta + noise.mean(axis=0))
        np.testing.assert_allclose(ranks.theta, theta, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("preset", ["", "bmuf", "slowmo", "diloco"])
def test_blocks_give_the_bits_of_the_whole(preset: str) -> None:
    found = []
    for block in (1000, 100):
        ranks = Ranks(np.linspace(-2, 2, 1000), 2, f"algorithm.preset={preset}", "algorithm.tau=2")
        rng = np.random.default_rng(4)
        for t in range(6):
            ranks.step(t, [rng.standard_normal(1000) for _ in range(2)], block)
        found.append((ranks.theta.tobytes(), ranks.vectors["velocity"].tobytes(), ranks.rules[0].at.tobytes()))
    assert found[0] == found[1]


@pytest.mark.parametrize("preset", ["", "bmuf", "slowmo"])
def test_converges_on_a_quadratic(preset: str) -> None:
    ranks = Ranks(np.linspace(-2, 2, 50), 2, f"algorithm.preset={preset}", "algorithm.tau=3")
    for t in range(300):
        ranks.step(t)
    assert np.abs(ranks.theta).max() < 1e-6
    assert all(isinstance(rule, BlockRule) for rule in ranks.rules)
