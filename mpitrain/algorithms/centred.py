"""Base classes of the algorithms whose workers exchange with a centre."""

from collections.abc import Sequence
from math import sqrt
from typing import Literal

import numpy as np

from mpitrain.algorithms.interface import Slowing
from mpitrain.algorithms.optimizers import Buffers, plain
from mpitrain.errors import BadInput
from mpitrain.flat import Array
from mpitrain.keys import Count, NotNegative
from mpitrain.sampling.stages import Settings


class Centred(Slowing, frozen=True):
    """A centre on rank 0, which is also the only worker if there is one rank."""

    protocol = "server"
    loop_instead = "its gradients go to a server, and here all ranks train; easgd, or allreduce, fits"
    workers_change = True
    sampling: Literal["dispensed", "independent", "chunked"] = "dispensed"
    """`"dispensed"`: each sample once an epoch. `"independent"`: draws with replacement from the whole corpus, so that
    an epoch is that number of samples but not every sample. `"chunked"`: a worker takes a chunk of neighbours from each
    of `loaders` loaders, shuffles them and trains on all of them before it takes others; each sample once an epoch."""
    loaders: Count = 4  # number of chunks that a worker of `"chunked"` sampling takes together
    chunk: Count = 512  # samples of a chunk
    order: Literal["free", "round-robin"] = "free"  # `"round-robin"`: workers take turns; repeatable to the bit

    @property
    def in_order(self) -> bool:
        return self.order == "round-robin"

    @property
    def independent(self) -> bool:
        return self.sampling == "independent"

    @property
    def chunked(self) -> tuple[int, int] | None:
        return (self.loaders, self.chunk) if self.sampling == "chunked" else None


class Elastic(Centred, frozen=True):
    """A centre x̃ to which workers with parameters xⁱ add differences (Zhang, Choromanska & LeCun 2015)."""

    additive = True
    in_teams = True
    tau: Count = 10  # τ: minibatches between two exchanges
    rate_decay: NotNegative = 0.0  # γ of η/(1 + γt)^0.5, t the worker's own clock
    centre: Literal["whole", "sharded"] = "whole"  # x̃ on rank 0, or a share of it on every rank

    def check_with(self, exchange: str, rate_per: str, settings: Sequence[Settings]) -> None:
        if self.centre == "sharded" and exchange == "messages":
            raise BadInput("algorithm.centre = 'sharded': needs one-sided access; run.exchange allows messages only")

    def beside(self, theta: Array) -> Buffers:
        return {}

    def own_vectors(self) -> int:
        x = np.zeros(1, np.float32)
        return len(self.worker(x, x, 2, plain).vectors)

    @property
    def period(self) -> int:
        return self.tau

    @property
    def sharded(self) -> bool:
        return self.centre == "sharded"

    def own_rate(self, eta: float, t: int) -> float:
        # η/(1 + γt)^0.5, with which EAMSGD escapes traps at long periods
        return eta / sqrt(1.0 + self.rate_decay * t) if self.rate_decay else eta
