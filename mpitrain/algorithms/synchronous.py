"""SGD on one rank, with and without averaging; synchronous data parallelism."""

from typing import ClassVar

from mpitrain.algorithms.interface import SharedBatch, Slowing
from mpitrain.algorithms.optimizers import Fast, Optimizer, plain, with_momentum
from mpitrain.algorithms.space import COMMON, MOMENTA
from mpitrain.keys import Amount, Fraction, Share


class SgdAlgorithm(Slowing, frozen=True, tag_field="name", tag="sgd"):
    """Plain SGD on one rank."""

    protocol = "synchronous"
    any_optimizer = True


class Msgd(Slowing, frozen=True, tag_field="name", tag="msgd"):
    """SGD with momentum on one rank."""

    protocol = "synchronous"
    training: ClassVar = {"learning_rate": 0.01}
    space: ClassVar = {**COMMON, "momentum": MOMENTA}
    momentum: Fraction = 0.9  # μ
    nesterov: bool = True  # Nesterov's momentum; false: classical

    def optimizer(self, fast: Fast = plain) -> Optimizer:
        return with_momentum(self.momentum, self.nesterov, fast)


class Averaged(Slowing, frozen=True, tag_field="name", tag="averaged"):
    """SGD with the mean of all iterates."""

    protocol = "synchronous"
    model_from = ("average",)


class MovingAverage(Averaged, frozen=True, tag_field="name", tag="moving-average"):
    """SGD with a moving average of the iterates."""

    average_rate: Share = 0.01  # rate of the moving average

    def averaging_rate(self, t: int) -> float:
        return self.average_rate


class Allreduce(SharedBatch, frozen=True, tag_field="name", tag="allreduce"):
    """Synchronous data-parallel SGD."""

    protocol = "synchronous"
    replicated = True
    any_optimizer = True
    loop_keys = ("bucket_mb",)
    training: ClassVar = {"minibatch": 8, "learning_rate": 0.02}
    space: ClassVar = {**COMMON, "momentum": MOMENTA}
    momentum: Fraction = 0.9  # μ
    nesterov: bool = True  # Nesterov's momentum; false: classical
    bucket_mb: Amount = 4.0  # gradients are summed in pieces of this size, while the backward pass goes on

    def optimizer(self, fast: Fast = plain) -> Optimizer:
        return super().optimizer(fast) if self.chosen else with_momentum(self.momentum, self.nesterov, fast)
