"""Data-parallel convolutions with model-parallel fully connected layers (Krizhevsky 2014)."""

from collections.abc import Iterable, Sequence
from math import expm1, log1p, sqrt
from typing import ClassVar, Literal

import numpy as np

from mpitrain.algorithms.interface import SharedBatch
from mpitrain.algorithms.optimizers import Buffers, Fast, plain
from mpitrain.algorithms.optimizers.sgd import krizhevsky
from mpitrain.algorithms.space import COMMON, MOMENTA, Choice
from mpitrain.errors import BadInput
from mpitrain.flat import Array, Layout, block_of, block_slices, scratch_for
from mpitrain.keys import Count, Fraction, NotNegative, Number, Positive
from mpitrain.sampling.stages import Settings


def scaled_by_theory(eta: float, decay: float, k: float) -> tuple[float, float]:
    """(√k·ε, ω′) for a minibatch k times as large (Krizhevsky 2014, §5).

    √k keeps the variance of a step; ω′ makes one decay by √k·ε as strong as k decays by ε: 1 − √kεω′ = (1 − εω)^k.
    """
    scaled = sqrt(k) * eta
    # ω′ = (1 − (1 − εω)^k)/(√kε), without cancelling when εω is small
    return scaled, -expm1(k * log1p(-eta * decay)) / scaled


class Hybrid(SharedBatch, frozen=True, tag_field="name", tag="hybrid"):
    """Data-parallel convolutions, model-parallel fully connected layers (Krizhevsky 2014)."""

    protocol = "hybrid"
    divides = True
    loop_instead = "it divides the layers over the ranks; allreduce fits"
    rates_biases = True
    training: ClassVar = {"minibatch": 32, "learning_rate": 0.06, "epochs": 6.0}
    space: ClassVar = {**COMMON, "scheme": Choice(("a", "b", "c")), "momentum": MOMENTA}
    scheme: Literal["a", "b", "c"] = "b"  # how activations reach the fully connected layers
    group: Number = 0  # ranks that share a round of scheme c; 0: all of them
    fc_batch: Literal["full", "sub"] = "full"  # fully connected layers: one update per minibatch, or per round
    momentum: Fraction = 0.9  # μ
    weight_decay: NotNegative = 0.0005  # weight decay of Krizhevsky's rule, in addition to model.l2
    bias_rate: Positive = 2.0  # learning rate of biases, relative to that of weights
    scaling: Literal["linear", "theory", "none"] = "linear"
    """factor of η: `"linear"`: k = batch / base_batch, `"theory"`: √k, `"none"`: 1"""
    base_batch: Count = 128  # the minibatch to which training.learning_rate applies
    overlap: bool = True  # overlap communication and computation; false measures the gain

    def check(self) -> None:
        if self.group and self.scheme != "c":
            raise BadInput(f"algorithm.group: only scheme c has groups, not {self.scheme}")

    def unfit(self) -> dict[str, str]:
        partial = {"clip_norm": 'where fc_batch = "sub" updates before the gradient is whole'}
        return {"accumulate": "which has rounds of its own", **(partial if self.fc_batch == "sub" else {})}

    def check_with(self, exchange: str, rate_per: str, settings: Sequence[Settings]) -> None:
        if rate_per == "sample":
            raise BadInput("training.rate_per: hybrid's learning rate multiplies means; algorithm.scaling scales it")
        if self.scaling == "theory" and max(each.learning_rate for each in settings) * self.weight_decay >= 1:
            raise BadInput("algorithm.scaling: theory needs learning_rate x weight_decay below 1")

    def beside(self, theta: Array) -> Buffers:
        return {"velocity": np.zeros_like(theta)} if self.momentum else {}

    def scaled(self, eta: float, decay: float, batch: int) -> tuple[float, float]:
        """Rate and decay for a minibatch of `batch`, given those for `base_batch` (§5). Raises BadInput if one decay
        would leave nothing of a weight."""
        if self.scaling == "none":
            return eta, decay
        k = batch / self.base_batch
        if self.scaling == "linear":
            return k * eta, decay  # the heuristic that Krizhevsky found to work better
        if eta * decay >= 1:
            line = "algorithm.scaling: theory needs learning_rate x (weight_decay + l2) below 1"
            raise BadInput(f"{line}, not {eta * decay:.3g}")
        return scaled_by_theory(eta, decay, k)


class HybridRule:
    """inc ← μ·inc − ω·ε·w + ε·⟨−∂E/∂w⟩; w ← w + inc. Biases without weight decay, at `bias_rate` times the rate.

    `l2` and `l2_of_biases` are the network's: ω = weight_decay + l2 is the same rule as l2 in the gradient.
    """

    def __init__(
        self,
        options: Hybrid,
        layout: Layout,
        theta: Array,
        velocity: Array,
        gradient: Array,
        l2: float,
        l2_of_biases: float = 0.0,
        fast: Fast = plain,
    ) -> None:
        self.options, self.decay, self.decay_of_biases = options, options.weight_decay + l2, l2_of_biases
        self.theta, self.velocity, self.gradient = theta, velocity, gradient
        self._decays = {p.name: p.decay for p in layout.parameters}
        self._slices = layout.slices
        self._scratch, self._rule = scratch_for(theta), fast(krizhevsky)

    def __call__(self, names: Iterable[str], eta: float, batch: int, bias_scale: float = 1.0) -> None:
        """Update these parameters by their gradients, means over `batch` examples; `eta` is for `base_batch`, and
        stages multiply the learning rate of biases by `bias_scale` in addition."""
        rate, decay = self.options.scaled(eta, self.decay, batch)
        bias_factor = self.options.bias_rate * bias_scale
        _, decay_of_biases = self.options.scaled(eta * bias_factor, self.decay_of_biases, batch)
        of_weights = {"eta": rate, "decay": decay}
        of_biases = {"eta": rate * self.options.bias_rate * bias_scale, "decay": decay_of_biases}
        for name in names:
            scalars = of_weights if self._decays[name] else of_biases
            for b in block_slices(self._slices[name], block_of(self.theta)):
                vectors = self.theta[b], self.velocity[b], self.gradient[b], self._scratch[: b.stop - b.start]
                self._rule(*vectors, mu=self.options.momentum, **scalars)
