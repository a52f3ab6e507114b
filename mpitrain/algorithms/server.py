"""The parameter server (Chan & Lane 2014, Algorithm 1; Zhang 2013 is μ = 0, β = 1).

∇ is the sum of the gradients of a worker's local steps, not multiplied by η or −1. (In §4 of the paper, workers send a
difference of parameters; with Algorithm 1 as printed, this would ascend, and apply η twice.)
"""

from typing import ClassVar, Literal

import numpy as np

from mpitrain.algorithms.centred import Centred
from mpitrain.algorithms.optimizers import Buffers, Fast
from mpitrain.algorithms.optimizers.sgd import accelerate, sgd
from mpitrain.algorithms.roles import MasterRule, Merge
from mpitrain.flat import Array
from mpitrain.keys import Count, Fraction, Number, Share


def decay(i: int, j: int, beta: float) -> float:
    """The weight α = β^(i−j) of a gradient at Θ_j if the server is at Θ_i. Raises ValueError if j > i."""
    if j > i:
        raise ValueError(f"a gradient at index {j} reached a server at index {i}")
    return beta ** (i - j)


def update(
    theta: Array, v: Array | None, gradient: Array, scratch: Array, *, eta: float, mu: float, alpha: float
) -> None:
    """The update of Algorithm 1, after which the caller increments i.

    v may be None if μ = 0; Θ gets the same bits without a velocity.
    """
    if v is None:
        if mu != 0.0:
            raise ValueError(f"momentum {mu} needs a velocity")
        # Θ ← Θ − αη∇
        sgd(theta, gradient, scratch, eta=alpha * eta)
        return
    # v ← μv − αη∇
    accelerate(v, gradient, scratch, eta=alpha * eta, mu=mu)
    # Θ ← Θ + v
    np.add(theta, v, out=theta)


class Served(Centred, frozen=True):
    """Workers send sums of their gradients, and the master updates Θ with them."""

    @property
    def period(self) -> int:
        return 1


class Asgd(Served, frozen=True, tag_field="name", tag="asgd"):
    """Asynchronous parameter server (Zhang 2013; Chan & Lane 2014)."""

    training: ClassVar = {"learning_rate": 0.03, "epochs": 20.0}
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
    preset: Literal["", "zhang2013", "chan2014"] = ""  # a paper's values, with its stages
    momentum: Fraction = 0.0  # μ of the master (Chan & Lane eq 3)
    gradient_decay: Share = 1.0  # β of α = β^(i−j) (Chan & Lane eq 5)
    minibatches: Count = 1  # minibatches between two exchanges; the minimum if until_free
    until_free: bool = False  # continue to compute until the master grants the exchange
    minibatches_most: Number = 0  # the maximum if until_free; 0: ten times `minibatches`
    sampling: Literal["dispensed", "independent"] = "dispensed"
    """`"dispensed"`: each sample once an epoch; `"independent"`: draws with replacement from the whole corpus."""
    order: Literal["free", "round-robin"] = "free"  # `"round-robin"`: workers take turns; repeatable to the bit

    @property
    def period(self) -> int:
        return self.minibatches

    def check_steps(self, steps: int) -> None:
        """Accept every n: a worker with fewer minibatches sends the sum of those."""

    @property
    def most(self) -> int:
        """The maximum, which is n in round-robin order."""
        if not self.until_free or self.order == "round-robin":
            return self.minibatches
        return max(self.minibatches_most or 10 * self.minibatches, self.minibatches)

    @property
    def computes_on(self) -> bool:
        return self.until_free

    def beside(self, theta: Array) -> Buffers:
        return {"velocity": np.zeros_like(theta)} if self.momentum else {}

    @property
    def momentum_changes(self) -> bool:
        return self.momentum > 0  # else there is no velocity

    def master(self, fast: Fast) -> MasterRule:
        return ServerRule(self.momentum, self.gradient_decay, fast)


class ServerRule(MasterRule):
    """Chan & Lane 2014, Algorithm 1; Zhang 2013 is μ = 0 and β = 1."""

    def __init__(self, mu: float, beta: float, fast: Fast) -> None:
        self._mu, self._beta, self._update = mu, beta, fast(update)

    def merge(self, vectors: Buffers, delta: Array, scratch: Array, at: Merge) -> None:
        alpha = decay(at.t, at.t - at.stale, self._beta)
        mu = self._mu if at.momentum is None else at.momentum
        self._update(vectors["theta"], vectors.get("velocity"), delta, scratch, eta=at.eta, mu=mu, alpha=alpha)
