"""Block momentum: ranks train independently, and Θ follows the averages of their parameters with momentum.

Chen & Huo 2016 (BMUF), Wang et al. 2020 (SlowMo) and Douillard et al. 2023 (DiLoCo) are special cases. In Sarfi et
al. 2025 (SparseLoCo) ranks exchange the largest entries instead of whole averages.
"""

from typing import ClassVar, Literal

import numpy as np

from mpitrain.algorithms.delayed import DelayedMomentum, MovedBy
from mpitrain.algorithms.interface import Algorithm
from mpitrain.algorithms.optimizers import Buffers, Descent, Fast, Optimizer, plain
from mpitrain.algorithms.optimizers.outer import LookAhead, OuterMomentum
from mpitrain.algorithms.roles import AveragingRule, Largest
from mpitrain.algorithms.space import COMMON, PERIODS, Choice
from mpitrain.errors import BadInput
from mpitrain.flat import Array, scratch_for
from mpitrain.keys import Count, Fraction, Number, Positive, Share


class BlockMomentum(Algorithm, frozen=True, tag_field="name", tag="block-momentum"):
    """All ranks take τ local steps and average their parameters; Θ follows the averages with momentum.

    Without outer momentum (μ = 0, ζ = 1) this is local SGD. Θ is evaluated.
    """

    any_optimizer = True
    loop_keys = ("preset", "tau", "momentum", "rate", "look_ahead", "unit", "buffers")
    training: ClassVar = {"minibatch": 8, "learning_rate": 0.05, "epochs": 20.0}
    space: ClassVar = {
        **COMMON,
        "tau": PERIODS,
        "momentum": Choice((0.0, 0.3, 0.5, 0.7, 0.9)),
        "look_ahead": Choice(("none", "start")),
        "order": Choice(("together", "free")),
    }
    presets: ClassVar = {
        "": {},
        "bmuf": {"momentum": None, "rate": 1.0, "look_ahead": "start"},
        "slowmo": {"momentum": 0.7, "rate": 1.0, "unit": "learning-rate"},
        "diloco": {"momentum": 0.9, "rate": 0.7, "look_ahead": "step", "optimizer": {"name": "adamw"}},
        "sparseloco": {"momentum": 0.0, "rate": 1.0, "tau": 30, "top_k": 64, "optimizer": {"name": "adamw"}},
    }
    preset: Literal["", "bmuf", "slowmo", "diloco", "sparseloco"] = ""  # a paper's values of this table
    tau: Count = 10  # τ: minibatches between two averages
    momentum: Fraction | None = None  # μ; by default 1 − 1/p with p ranks (BMUF)
    rate: Positive = 1.0  # ζ: the step of Θ in units of the average's change
    look_ahead: LookAhead = "none"
    """`"start"`: ranks start ahead of Θ, at Θ + μζv (BMUF); `"step"`: Θ itself moves ahead (DiLoCo)."""
    unit: Literal["one", "learning-rate"] = "one"  # unit of the momentum v; SlowMo's follows the learning rate
    buffers: Literal["kept", "reset", "averaged"] = "kept"
    """Whether an average leaves the optimizer's buffers as they are, clears them, or averages them."""
    top_k: Number = 0  # entries sent of each chunk of a rank's change, the rest later; 0: whole averages
    chunk: Count = 4096  # elements of a chunk, neighbours in a tensor
    bits: Literal[1, 2, 4, 32] = 2  # of an entry sent: its sign, and one of its tensor's levels; 32: unquantised
    error_decay: Share = 0.95  # β: share of the rest kept until the next exchange (SparseLoCo's error feedback)
    order: Literal["together", "free", "round-robin"] = "together"
    """`"free"`: nobody waits. Rank 0 serves, moves Θ by each worker's difference as it comes, and by the momentum after
    as many as there are workers ([equations](algorithms.md#block-momentum-that-waits-for-nobody)); `"round-robin"`: the
    same, workers take turns; repeatable to the bit."""
    speeds: tuple[Share, ...] = ()
    """In `"free"` order the workers' relative speeds, by which they take fewer than τ steps, repeated where there are
    more workers; by default as measured, and in `"round-robin"` order equal."""
    weights: Literal["equal", "samples"] = "equal"
    """`"samples"`, unless the order is `"together"`: a difference after fewer than τ minibatches counts for less."""

    def check(self) -> None:
        if self.order != "together":
            self._check_free()
        elif self.speeds or self.weights != "equal":
            key = "speeds" if self.speeds else "weights"
            raise BadInput(f"algorithm.{key}: belongs to order = 'free' or 'round-robin'")
        if self.look_ahead != "none" and self.unit != "one":
            raise BadInput(f"algorithm.unit: can only be 'one' with look_ahead = {self.look_ahead!r}")
        if self.top_k and self.look_ahead == "start":
            raise BadInput("algorithm.look_ahead = 'start': entries (top_k) are of changes of Θ; 'none' or 'step' fits")
        if self.top_k and self.buffers == "averaged":
            raise BadInput("algorithm.buffers = 'averaged': buffers are sent whole, and only entries are (top_k)")

    def _check_free(self) -> None:
        if self.unit != "one":
            raise BadInput(f"algorithm.unit: can only be 'one' with order = {self.order!r}; slowmo needs 'together'")
        if self.buffers == "averaged":
            raise BadInput(f"algorithm.buffers: cannot be 'averaged' with order = {self.order!r}, where nobody meets")
        if self.top_k:
            raise BadInput(
                f"algorithm.top_k: entries are exchanged by all; order = {self.order!r} sends differences whole"
            )

    # ---- in free order: a master, and workers that it serves

    @property
    def protocol(self) -> str:  # type: ignore[override]
        return "model-averaging" if self.order == "together" else "server"

    @property
    def workers_change(self) -> bool:  # type: ignore[override]
        return self.has_master

    @property
    def in_order(self) -> bool:
        return self.order == "round-robin"

    @property
    def period(self) -> int:
        return self.tau

    @property
    def given_speeds(self) -> tuple[float, ...]:
        return self.speeds or ((1.0,) if self.in_order else ())

    def steps_of(self, speed: float, fastest: float) -> int:
        """τ_w = max(1, ⌊τ·v_w/v_max⌋), so that all workers push equally often."""
        return max(1, int(self.tau * speed / fastest + 1e-9))

    @property
    def model_from(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("theta", "velocity") if self.has_master and self.look_ahead == "start" else ("theta",)

    def model(self, vectors: Buffers) -> Array:
        """Θ; where workers start ahead, the vector "theta" is Θ + u, and u (the vector "velocity") is subtracted."""
        return vectors["theta"] - vectors["velocity"] if "velocity" in self.model_from else vectors["theta"]

    def rounds(self, theta: Array, total: Array, fast: Fast) -> MovedBy:
        return MovedBy(theta, total, self.optimizer(fast), self.buffers == "reset")

    def master(self, fast: Fast) -> DelayedMomentum:
        return DelayedMomentum(self.momentum, self.rate, self.look_ahead, self.weights == "samples")

    # ---- all ranks together

    def check_loop(self, one_rate: bool) -> None:
        if self.top_k:
            raise BadInput("algorithm.top_k: in a loop of one's own averages are sent whole; 0 fits")
        if self.buffers != "kept":
            raise BadInput(f"algorithm.buffers = {self.buffers!r}: the optimizer is yours; 'kept' fits")
        if self.follows_rate and not one_rate:
            raise BadInput("algorithm.unit = 'learning-rate' (SlowMo): the optimizer's groups have different rates")

    @property
    def follows_rate(self) -> bool:
        return self.unit == "learning-rate"

    @property
    def sparse(self) -> bool:
        return self.top_k > 0

    @property
    def density(self) -> float:
        return min(self.top_k / self.chunk, 1.0)

    def beside(self, theta: Array) -> Buffers:
        return {name: np.zeros_like(theta) for name in ("velocity", *["moved"] * self.has_master)}

    @property
    def units(self) -> tuple[object, ...]:
        return self.has_master, self.unit, self.look_ahead

    def own_vectors(self) -> int:
        if self.has_master:
            return 0
        x = np.zeros(1, np.float32)
        return len(self.averaging(x, {"theta": x, **self.beside(x)}, 2, plain).vectors)

    def averaging(self, x: Array, vectors: Buffers, ranks: int, fast: Fast) -> "BlockRule":
        mu = 1 - 1 / ranks if self.momentum is None else self.momentum
        outer = OuterMomentum(mu, self.rate, self.look_ahead, self.unit == "learning-rate")
        rule = BlockRule(vectors, outer, self.optimizer(fast), self.tau, self.buffers)
        if self.top_k:
            rule.largest = Largest(self.tau, self.top_k, self.chunk, self.bits, self.error_decay)
            rule.vectors["error"] = np.zeros_like(x)
        return rule


class BlockRule(AveragingRule):
    """A rank's parameters xⁱ, which an exchange replaces in place by their sum over all ranks. Where ranks send only
    the largest entries, the vector "error" holds what has not been sent."""

    def __init__(self, vectors: Buffers, outer: OuterMomentum, optimizer: Optimizer, tau: int, buffers: str) -> None:
        self.outer, self._tau, self._learning_rate = outer, tau, 1.0
        self._resets, self._averages = buffers == "reset", buffers == "averaged"
        x = vectors["theta"].copy()
        outer.start(x, vectors["theta"], vectors["velocity"])
        self.local, self._scratch = Descent(optimizer, x), scratch_for(x)
        self.vectors = {"x": self.local.x, **self.local.buffers}

    def due(self, t: int) -> bool:
        return (t - self.began + 1) % self._tau == 0

    def begin(self, eta: float, workers: int) -> None:
        self._learning_rate = eta

    def step(self, part: slice, g: Array, eta: float, t: int, first: bool) -> None:
        # xⁱ ← xⁱ + u
        self.local.step(part, g, eta, (t - self.began) % self._tau if self._resets else t)

    def shorten(self, steps: int) -> None:
        """Scale μ by the share of τ that is left: a whole move by the momentum would take Θ away from the ranks' mean,
        with too few steps to make up for it."""
        self.outer.momentum *= min(steps / self._tau, 1.0)  # more steps after a resume with a smaller τ

    @property
    def summed(self) -> list[Array]:
        return [self.local.x, *(self.local.buffers.values() if self._averages else ())]

    def take(self, b: slice, vectors: Buffers, ranks: int) -> None:
        for vector in self.summed:
            part = vector[b]
            np.divide(part, ranks, out=part)  # the same object: else CuPy makes a copy first
        x, theta, v = self.local.x[b], vectors["theta"], vectors["velocity"]
        self.outer.step(theta, v, x, self._scratch[: len(x)], self._learning_rate)
        self.outer.start(x, theta, v)
        if self._resets:
            self.local.restart(b, x)
        else:
            self.local.look(b)
