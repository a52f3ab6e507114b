"""One rank's SGD and its averages; synchronous data parallelism."""

from typing import ClassVar, Literal

from mpitrain.algorithms.table import Algorithm, Amount, Fraction, Share


class Sgd(Algorithm, frozen=True, tag_field="name", tag="sgd"):
    """Plain SGD on one rank."""

    protocol = "synchronous"


class Msgd(Algorithm, frozen=True, tag_field="name", tag="msgd"):
    """SGD with momentum on one rank."""

    protocol = "synchronous"
    training: ClassVar = {"learning_rate": 0.01}
    momentum: Fraction = 0.9
    nesterov: bool = True  # else classical


class Averaged(Algorithm, frozen=True, tag_field="name", tag="averaged"):
    """SGD with the average of all iterates beside it."""

    protocol = "synchronous"


class MovingAverage(Algorithm, frozen=True, tag_field="name", tag="moving-average"):
    """SGD with a moving average of the iterates beside it."""

    protocol = "synchronous"
    average_rate: Share = 0.01


class Allreduce(Algorithm, frozen=True, tag_field="name", tag="allreduce"):
    """Synchronous data-parallel SGD."""

    protocol = "synchronous"
    training: ClassVar = {"minibatch": 8, "learning_rate": 0.02}
    momentum: Fraction = 0.9
    nesterov: bool = True
    batch: Literal["local", "global"] = "local"  # whether training.minibatch is a rank's share or the whole
    bucket_mb: Amount = 4.0

    def workers(self, ranks: int) -> int:
        return ranks
