"""Block momentum: local steps, then a step with outer momentum towards their average (BMUF, SlowMo, DiLoCo)."""

from typing import ClassVar, Literal

import numpy as np

from mpitrain.algorithms.roles import AveragingRule
from mpitrain.algorithms.table import Algorithm
from mpitrain.errors import BadInput
from mpitrain.flat import Array, scratch_for
from mpitrain.keys import Count, Fraction, Positive
from mpitrain.optimizers import Buffers, Descent, Optimizer
from mpitrain.rules import Fast, plain
from mpitrain.rules.block_momentum import block_move, block_step, nesterov_step
from mpitrain.rules.sgd import look_ahead


class BlockMomentum(Algorithm, frozen=True, tag_field="name", tag="block-momentum"):
    """All ranks take τ local steps and average their parameters; Θ follows the averages with momentum.

    Without outer momentum (μ = 0, ζ = 1) this is local SGD. Θ is evaluated.
    """

    protocol = "model-averaging"
    any_optimizer = True
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
    look_ahead: Literal["none", "start", "step"] = "none"
    """`"start"`: ranks start ahead of Θ, at Θ + μζv (BMUF); `"step"`: Θ itself moves ahead (DiLoCo)."""
    unit: Literal["one", "learning-rate"] = "one"  # unit of the momentum v; SlowMo's follows the learning rate
    buffers: Literal["kept", "reset", "averaged"] = "kept"
    """Whether an average leaves the optimizer's buffers as they are, clears them, or averages them."""

    def check(self) -> None:
        if self.look_ahead != "none" and self.unit != "one":
            raise BadInput(f"algorithm.unit: can only be 'one' with look_ahead = {self.look_ahead!r}")

    def check_steps(self, steps: int) -> None:
        if self.tau > steps:
            raise BadInput(f"algorithm.tau = {self.tau}: longer than the {steps} minibatches that a worker has")

    def workers(self, ranks: int) -> int:
        return ranks

    def samples_of_step(self, minibatch: int, ranks: int) -> int:
        return minibatch * ranks

    def beside(self, theta: Array) -> Buffers:
        return {"velocity": np.zeros_like(theta)}

    def own_vectors(self) -> int:
        x = np.zeros(1, np.float32)
        return len(self.averaging(x, {"theta": x, **self.beside(x)}, 2, plain).vectors)

    def averaging(self, x: Array, vectors: Buffers, ranks: int, fast: Fast) -> "BlockRule":
        mu = 1 - 1 / ranks if self.momentum is None else self.momentum
        return BlockRule(vectors, self, self.optimizer(fast), mu)


class BlockRule(AveragingRule):
    """A rank's xⁱ, which an exchange replaces in place by the sum over all ranks."""

    def __init__(self, vectors: Buffers, options: BlockMomentum, optimizer: Optimizer, mu: float) -> None:
        self._options, self._mu, self._eta = options, mu, 1.0
        self._ahead = mu * options.rate if options.look_ahead == "start" else 0.0
        x = vectors["theta"].copy()
        if self._ahead:
            look_ahead(x, vectors["theta"], vectors["velocity"], self._ahead)
        self.local, self._scratch = Descent(optimizer, x), scratch_for(x)
        self.vectors = {"x": self.local.x, **self.local.buffers}

    def due(self, t: int) -> bool:
        return (t + 1) % self._options.tau == 0

    def begin(self, eta: float, workers: int) -> None:
        self._eta = eta

    def step(self, part: slice, g: Array, eta: float, t: int, first: bool) -> None:
        # xⁱ ← xⁱ + u
        self.local.step(part, g, eta, t % self._options.tau if self._options.buffers == "reset" else t)

    def shorten(self, steps: int) -> None:
        """The momentum lasts as long as the steps do: a whole move of it would take Θ away from the ranks' mean,
        without the steps that make up for it."""
        self._mu *= steps / self._options.tau

    @property
    def summed(self) -> list[Array]:
        buffers = self.local.buffers.values() if self._options.buffers == "averaged" else ()
        return [self.local.x, *buffers]

    def take(self, b: slice, vectors: Buffers, ranks: int) -> None:
        options, mu, x, scratch = self._options, self._mu, self.local.x[b], self._scratch[: b.stop - b.start]
        theta, v = vectors["theta"], vectors["velocity"]
        for vector in self.summed:
            part = vector[b]
            np.divide(part, ranks, out=part)  # the same object: else CuPy makes a copy first
        unit = self._eta if options.unit == "learning-rate" else 1.0
        # Δ ← mean(xⁱ) − their start;  v ← μv + Δ
        block_move(x, theta, v, scratch, mu=mu, unit=unit, ahead=self._ahead)
        if options.look_ahead == "step":
            # Θ ← Θ + ζ(Δ + μv)
            nesterov_step(theta, v, x, scratch, rate=options.rate, mu=mu)
        else:
            # Θ ← Θ + ζv
            block_step(theta, v, scratch, rate=options.rate * unit)
        # xⁱ ← Θ, or Θ + μζv
        if self._ahead:
            look_ahead(x, theta, v, self._ahead)
        else:
            np.copyto(x, theta)
        self._restart(b, x)

    def _restart(self, b: slice, x: Array) -> None:
        """Reset the optimizer's buffers if so configured, and bring the point of the next gradient up to date."""
        if self._options.buffers == "reset":
            self.local.restart(b, x)
        else:
            self.local.look(b)
