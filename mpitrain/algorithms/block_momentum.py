"""Block momentum: ranks train independently, and Θ follows the averages of their parameters with momentum.

Chen & Huo 2016 (BMUF), Wang et al. 2020 (SlowMo) and Douillard et al. 2023 (DiLoCo) are special cases.
"""

from typing import ClassVar, Literal

import numpy as np

from mpitrain.algorithms.interface import Algorithm
from mpitrain.algorithms.optimizers import Buffers, Descent, Fast, Optimizer, plain
from mpitrain.algorithms.optimizers.outer import LookAhead, OuterMomentum
from mpitrain.algorithms.roles import AveragingRule
from mpitrain.errors import BadInput
from mpitrain.flat import Array, scratch_for
from mpitrain.keys import Count, Fraction, Positive


class BlockMomentum(Algorithm, frozen=True, tag_field="name", tag="block-momentum"):
    """All ranks take τ local steps and average their parameters; Θ follows the averages with momentum.

    Without outer momentum (μ = 0, ζ = 1) this is local SGD. Θ is evaluated.
    """

    protocol = "model-averaging"
    any_optimizer = True
    together = True
    loop_keys = ("preset", "tau", "momentum", "rate", "look_ahead", "unit", "buffers")
    training: ClassVar = {"minibatch": 8, "learning_rate": 0.05, "epochs": 20.0}
    presets: ClassVar = {
        "": {},
        "bmuf": {"momentum": None, "rate": 1.0, "look_ahead": "start"},
        "slowmo": {"momentum": 0.7, "rate": 1.0, "unit": "learning-rate"},
        "diloco": {"momentum": 0.9, "rate": 0.7, "look_ahead": "step", "optimizer": {"name": "adamw"}},
    }
    preset: Literal["", "bmuf", "slowmo", "diloco"] = ""  # a paper's values, with its stages
    tau: Count = 10  # τ: minibatches between two averages
    momentum: Fraction | None = None  # μ; by default 1 − 1/p with p ranks (BMUF)
    rate: Positive = 1.0  # ζ: the step of Θ in units of the average's change
    look_ahead: LookAhead = "none"
    """`"start"`: ranks start ahead of Θ, at Θ + μζv (BMUF); `"step"`: Θ itself moves ahead (DiLoCo)."""
    unit: Literal["one", "learning-rate"] = "one"  # unit of the momentum v; SlowMo's follows the learning rate
    buffers: Literal["kept", "reset", "averaged"] = "kept"
    """Whether an average leaves the optimizer's buffers as they are, clears them, or averages them."""

    def check(self) -> None:
        if self.look_ahead != "none" and self.unit != "one":
            raise BadInput(f"algorithm.unit: can only be 'one' with look_ahead = {self.look_ahead!r}")

    def check_loop(self, one_rate: bool) -> None:
        if self.buffers != "kept":
            raise BadInput(f"algorithm.buffers = {self.buffers!r}: the optimizer is yours; 'kept' fits")
        if self.unit == "learning-rate" and not one_rate:
            raise BadInput("algorithm.unit = 'learning-rate' (SlowMo): the optimizer's groups have different rates")

    def check_steps(self, steps: int) -> None:
        if self.tau > steps:
            raise BadInput(f"algorithm.tau = {self.tau}: longer than the {steps} minibatches that a worker has")

    def beside(self, theta: Array) -> Buffers:
        return {"velocity": np.zeros_like(theta)}

    def own_vectors(self) -> int:
        x = np.zeros(1, np.float32)
        return len(self.averaging(x, {"theta": x, **self.beside(x)}, 2, plain).vectors)

    def averaging(self, x: Array, vectors: Buffers, ranks: int, fast: Fast) -> "BlockRule":
        mu = 1 - 1 / ranks if self.momentum is None else self.momentum
        outer = OuterMomentum(mu, self.rate, self.look_ahead, self.unit == "learning-rate")
        return BlockRule(vectors, outer, self.optimizer(fast), self.tau, self.buffers)


class BlockRule(AveragingRule):
    """A rank's xⁱ, which an exchange replaces in place by the sum over all ranks."""

    def __init__(self, vectors: Buffers, outer: OuterMomentum, optimizer: Optimizer, tau: int, buffers: str) -> None:
        self.outer, self._tau, self._learning_rate = outer, tau, 1.0
        self._resets, self._averages = buffers == "reset", buffers == "averaged"
        x = vectors["theta"].copy()
        outer.start(x, vectors["theta"], vectors["velocity"])
        self.local, self._scratch = Descent(optimizer, x), scratch_for(x)
        self.vectors = {"x": self.local.x, **self.local.buffers}

    def due(self, t: int) -> bool:
        return (t + 1) % self._tau == 0

    def begin(self, eta: float, workers: int) -> None:
        self._learning_rate = eta

    def step(self, part: slice, g: Array, eta: float, t: int, first: bool) -> None:
        # xⁱ ← xⁱ + u
        self.local.step(part, g, eta, t % self._tau if self._resets else t)

    def shorten(self, steps: int) -> None:
        """The momentum lasts as long as the steps do: a whole move of it would take Θ away from the ranks' mean,
        without the steps that make up for it."""
        self.outer.momentum *= steps / self._tau

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
