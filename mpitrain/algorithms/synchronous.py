"""SGD on one rank, with and without averaging; synchronous data parallelism."""

from math import ceil
from typing import ClassVar, Literal

from mpitrain.algorithms.stagnation import Slowing
from mpitrain.algorithms.table import Algorithm, Average
from mpitrain.flat import Array
from mpitrain.keys import Amount, Fraction, Share
from mpitrain.optimizers import Buffers, Optimizer, with_momentum
from mpitrain.rules import Fast, averaging, plain


class SgdAlgorithm(Slowing, frozen=True, tag_field="name", tag="sgd"):
    """Plain SGD on one rank."""

    protocol = "synchronous"
    any_optimizer = True


class Msgd(Slowing, frozen=True, tag_field="name", tag="msgd"):
    """SGD with momentum on one rank."""

    protocol = "synchronous"
    training: ClassVar = {"learning_rate": 0.01}
    momentum: Fraction = 0.9  # μ
    nesterov: bool = True  # Nesterov's momentum; false: classical

    def optimizer(self, fast: Fast = plain) -> Optimizer:
        return with_momentum(self.momentum, self.nesterov, fast)


class _KeepsAverage(Slowing, frozen=True):
    """SGD on one rank whose model is an average z of its iterates; z₀ = θ₀."""

    protocol = "synchronous"
    model_from = ("average",)

    def beside(self, theta: Array) -> Buffers:
        return {"average": theta.copy()}

    def model(self, vectors: Buffers) -> Array:
        return vectors["average"]


class Averaged(_KeepsAverage, frozen=True, tag_field="name", tag="averaged"):
    """SGD with the mean of all iterates."""

    def average(self, fast: Fast) -> Average:
        return running(fast)


class MovingAverage(_KeepsAverage, frozen=True, tag_field="name", tag="moving-average"):
    """SGD with a moving average of the iterates."""

    average_rate: Share = 0.01  # rate of the moving average

    def average(self, fast: Fast) -> Average:
        return moving(fast, self.average_rate)


class Allreduce(Algorithm, frozen=True, tag_field="name", tag="allreduce"):
    """Synchronous data-parallel SGD."""

    protocol = "synchronous"
    replicated = True
    any_optimizer = True
    training: ClassVar = {"minibatch": 8, "learning_rate": 0.02}
    momentum: Fraction = 0.9  # μ
    nesterov: bool = True  # Nesterov's momentum; false: classical
    batch: Literal["local", "global"] = "local"  # whether training.minibatch is per rank or for all ranks
    bucket_mb: Amount = 4.0  # gradients are summed in pieces of this size, while the backward pass goes on

    def workers(self, ranks: int) -> int:
        return ranks

    def samples_of_step(self, minibatch: int, ranks: int) -> int:
        return minibatch * (ranks if self.batch == "local" else 1)

    def samples_of_gradient(self, minibatch: int, ranks: int) -> int:
        return minibatch if self.batch == "local" else ceil(minibatch / ranks)

    def optimizer(self, fast: Fast = plain) -> Optimizer:
        return super().optimizer(fast) if self.chosen else with_momentum(self.momentum, self.nesterov, fast)


def running(fast: Fast) -> Average:
    """The mean of all iterates."""
    rule = fast(averaging.running_average)

    def take(z: Array, x: Array, scratch: Array, t: int) -> None:
        rule(z, x, scratch, t=t)

    return take


def moving(fast: Fast, rate: float) -> Average:
    """An average with a constant moving rate."""
    rule = fast(averaging.moving_average)

    def take(z: Array, x: Array, scratch: Array, t: int) -> None:
        rule(z, x, scratch, rate=rate)

    return take
