"""Data-parallel convolutions with model-parallel fully connected layers."""

from collections.abc import Sequence
from math import ceil
from typing import ClassVar, Literal

import numpy as np

from mpitrain.algorithms.table import Algorithm
from mpitrain.errors import BadInput
from mpitrain.flat import Array
from mpitrain.keys import Count, Fraction, NotNegative, Number, Positive
from mpitrain.optimizers import Buffers
from mpitrain.schedules.stages import Settings


class Hybrid(Algorithm, frozen=True, tag_field="name", tag="hybrid"):
    """Data-parallel convolutions, model-parallel fully connected layers (Krizhevsky 2014)."""

    protocol = "hybrid"
    divides = True
    rates_biases = True
    needs_values = "its layers are divided over the ranks"
    training: ClassVar = {"minibatch": 32, "learning_rate": 0.06, "epochs": 6.0}
    scheme: Literal["a", "b", "c"] = "b"  # how activations reach the fully connected layers
    group: Number = 0  # ranks that share a round of scheme c; 0: all of them
    fc_batch: Literal["full", "sub"] = "full"  # fully connected layers: one update per minibatch, or per round
    batch: Literal["local", "global"] = "local"  # whether training.minibatch is per rank or for all ranks
    momentum: Fraction = 0.9  # μ
    weight_decay: NotNegative = 0.0005  # weight decay of Krizhevsky's rule, in addition to model.l2
    bias_rate: Positive = 2.0  # learning rate of biases, relative to that of weights
    scaling: Literal["linear", "theory", "none"] = "linear"  # factor of η: k = batch / base_batch, √k, or 1
    base_batch: Count = 128  # the minibatch to which training.learning_rate applies
    overlap: bool = True  # overlap communication and computation; false measures the gain

    def check(self) -> None:
        if self.group and self.scheme != "c":
            raise BadInput(f"algorithm.group: only scheme c has groups, not {self.scheme}")

    def check_with(self, exchange: str, rate_per: str, settings: Sequence[Settings]) -> None:
        if rate_per == "sample":
            raise BadInput("training.rate_per: hybrid's learning rate multiplies means; algorithm.scaling scales it")
        if self.scaling == "theory" and settings[0].learning_rate * self.weight_decay >= 1:
            raise BadInput("algorithm.scaling: theory needs learning_rate x weight_decay below 1")

    def workers(self, ranks: int) -> int:
        return ranks

    def samples_of_step(self, minibatch: int, ranks: int) -> int:
        return minibatch * (ranks if self.batch == "local" else 1)

    def samples_of_gradient(self, minibatch: int, ranks: int) -> int:
        return minibatch if self.batch == "local" else ceil(minibatch / ranks)

    def beside(self, theta: Array) -> Buffers:
        return {"velocity": np.zeros_like(theta)} if self.momentum else {}
