"""The parameter server (Chan & Lane 2014, Algorithm 1; Zhang 2013 is μ = 0, β = 1).

∇ is the sum of the gradients of a worker's local steps, not multiplied by η or −1. (In §4 of the paper, workers send a
difference of parameters; with Algorithm 1 as printed, this would ascend, and apply η twice.)
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np

from mpitrain.algorithms.centred import Centred
from mpitrain.algorithms.optimizers import Buffers, Descent, Fast, Optimizer
from mpitrain.algorithms.optimizers.sgd import behind, classical, sgd
from mpitrain.algorithms.roles import MasterRule, Merge, RoundRule
from mpitrain.algorithms.space import COMMON, MOMENTA, Choice
from mpitrain.algorithms.staleness import Dana, GapAware
from mpitrain.errors import BadInput
from mpitrain.flat import Array
from mpitrain.keys import Count, Fraction, Number, Share
from mpitrain.sampling.stages import Settings


def decay(i: int, j: int, beta: float) -> float:
    """The weight α = β^(i−j) of a gradient at Θ_j if the server is at Θ_i. Raises ValueError if j > i."""
    if j > i:
        raise ValueError(f"a gradient at index {j} reached a server at index {i}")
    return beta ** (i - j)


class Served(Centred, frozen=True):
    """Workers send sums of their gradients, and the master updates Θ with them."""

    stale_limit: Number = 0
    """A gradient whose staleness is this or more is dropped, and its samples are handed out again (Ringmaster ASGD);
    0: no gradient is dropped."""

    def vectors(self) -> int:
        return 3  # on a worker: θ, a gradient, and the Θ that it receives; the others are the master's

    def too_stale(self, stale: int) -> bool:
        return 0 < self.stale_limit <= stale

    def rounds(self, theta: Array, total: Array, fast: Fast) -> RoundRule:
        return SummedGradients(theta, total, self.optimizer(fast))

    def warnings(self, eta: float, workers: int) -> list[tuple[str, dict[str, float]]]:
        if not 0 < self.stale_limit < workers:
            return []
        line = f"algorithm.stale_limit = {self.stale_limit} is below the number of workers, {workers}"
        return [(f"{line}: while they are equally fast, gradients are dropped all the time", {})]


class Asgd(Served, frozen=True, tag_field="name", tag="asgd"):
    """Asynchronous parameter server (Zhang 2013; Chan & Lane 2014)."""

    training: ClassVar = {"learning_rate": 0.03, "epochs": 20.0}
    space: ClassVar = {
        **COMMON,
        "momentum": MOMENTA,
        "minibatches": Choice((1, 2, 4, 8)),
        "until_free": Choice((False, True)),
        "staleness": Choice(("decay", "inverse", "gap-aware", "dana")),
    }
    presets: ClassVar = {
        "": {},
        "zhang2013": {"momentum": 0.0, "gradient_decay": 1.0, "minibatches": 3, "until_free": False},
        "chan2014": {
            "momentum": 0.9,
            "gradient_decay": 0.9,
            "minibatches": 3,
            "until_free": True,
            "sampling": "independent",
        },
    }
    preset: Literal["", "zhang2013", "chan2014"] = ""  # a paper's values of this table
    momentum: Fraction = 0.0  # μ of the master (Chan & Lane eq 3)
    staleness: Literal["decay", "inverse", "gap-aware", "dana"] = "decay"
    """What becomes of a gradient at Θ_j when the server is at Θ_i: `"decay"` multiplies it by α = β^(i−j), `"inverse"`
    by 1/(1 + i − j), `"gap-aware"` divides it by how far Θ has moved; `"dana"` has workers look ahead by all velocities
    ([equations](algorithms.md#stale-gradients))."""
    gradient_decay: Share = 1.0  # β of α = β^(i−j) (Chan & Lane eq 5)
    minibatches: Count = 1  # minibatches between two exchanges; the minimum if until_free
    until_free: bool = False  # continue to compute until the master grants the exchange
    minibatches_most: Number = 0  # the maximum if until_free; 0: ten times `minibatches`
    sampling: Literal["dispensed", "independent"] = "dispensed"
    """`"dispensed"`: each sample once an epoch; `"independent"`: draws with replacement from the whole corpus."""

    @property
    def period(self) -> int:
        return self.minibatches

    def check(self) -> None:
        if self.staleness == "dana" and not self.momentum:
            raise BadInput('algorithm.staleness = "dana": looks ahead by momentum; algorithm.momentum is 0')
        if self.staleness != "decay" and self.gradient_decay != 1.0:
            raise BadInput(f'algorithm.gradient_decay: belongs to staleness = "decay", here it is "{self.staleness}"')
        if 0 < self.minibatches_most < self.minibatches:
            less = f"{self.minibatches_most}: less than algorithm.minibatches = {self.minibatches}"
            raise BadInput(f"algorithm.minibatches_most = {less}")

    def check_with(self, exchange: str, rate_per: str, settings: Sequence[Settings]) -> None:
        if self.staleness == "dana" and any(each.workers or each.momentum is not None for each in settings):
            raise BadInput('stages: workers and momentum cannot change with algorithm.staleness = "dana"')

    def check_steps(self, steps: int) -> None:
        """Accept any number: a worker that has fewer than `minibatches` sends the sum of these."""

    def steps_of(self, speed: float, fastest: float) -> int:
        """The most minibatches between two exchanges; all workers alike."""
        if not self.until_free or self.order == "round-robin":
            return self.minibatches
        return self.minibatches_most or 10 * self.minibatches

    @property
    def computes_on(self) -> bool:
        return self.until_free

    def beside(self, theta: Array) -> Buffers:
        used = {"velocity": self.momentum > 0, "squares": self.staleness == "gap-aware"}
        return {name: np.zeros_like(theta) for name in used if used[name]}

    def of_worker(self, vectors: Buffers, workers: int) -> Buffers:
        if self.staleness == "dana":
            return {"own": vectors["velocity"] / workers}
        return {"seen": vectors["theta"].copy()} if self.staleness == "gap-aware" else {}

    @property
    def units(self) -> tuple[object, ...]:
        return self.staleness, self.momentum if self.staleness == "dana" else None  # Θ is ahead by μ Σ_w v_w

    @property
    def model_from(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("theta", "velocity") if self.staleness == "dana" else ("theta",)

    def model(self, vectors: Buffers) -> Array:
        """Θ; DANA's vector "theta" is Θ + μ Σ_w v_w, from which the look-ahead is subtracted."""
        return behind(vectors, self.momentum) if self.staleness == "dana" else vectors["theta"]

    @property
    def momentum_changes(self) -> bool:
        return self.momentum > 0  # else there is no velocity

    def master(self, fast: Fast) -> MasterRule:
        if self.staleness == "dana":
            return Dana(self.momentum, fast)
        rule = ServerRule(self.momentum, self.gradient_decay, fast, inverse=self.staleness == "inverse")
        return GapAware(rule, fast) if self.staleness == "gap-aware" else rule


class SummedGradients(RoundRule):
    """s = Σg; the worker steps its own θ between two gradients, and the pulled Θ replaces θ after the last."""

    def __init__(self, theta: Array, total: Array, optimizer: Optimizer) -> None:
        self.local, self._total = Descent(optimizer, theta), total

    def target(self, gradient: Array, first: bool) -> Array:
        return self._total if first else gradient

    def step(self, b: slice, g: Array, eta: float, first: bool, last: bool) -> None:
        # s ← s + g;  θ ← θ − ηg
        if not first:
            s = self._total[b]
            np.add(s, g, out=s)  # the same object: else CuPy makes a copy first
        if not last:
            self.local.step(b, g, eta, 0)


class ServerRule(MasterRule):
    """Chan & Lane 2014, Algorithm 1; Zhang 2013 is μ = 0 and β = 1. With `inverse`, α is 1/(1 + i − j)."""

    def __init__(self, mu: float, beta: float, fast: Fast, inverse: bool = False) -> None:
        self._mu, self._beta, self._inverse = mu, beta, inverse
        self._sgd, self._classical = fast(sgd), fast(classical)

    def merge(self, vectors: Buffers, delta: Array, scratch: Array, at: Merge) -> None:
        alpha = 1 / (1 + at.stale) if self._inverse else decay(at.t, at.t - at.stale, self._beta)
        theta, v, eta = vectors["theta"], vectors.get("velocity"), alpha * at.eta
        if v is None:
            # Θ ← Θ − αη∇, the bits of a momentum of 0
            self._sgd(theta, delta, scratch, eta=eta)
        else:
            # v ← μv − αη∇;  Θ ← Θ + v
            self._classical(theta, v, delta, scratch, eta=eta, mu=self._mu if at.momentum is None else at.momentum)
