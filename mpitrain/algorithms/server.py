"""Algorithms whose master computes: the parameter server, and DOWNPOUR's relatives that need one."""

from typing import ClassVar, Literal

from mpitrain.algorithms.table import Algorithm, Count, Fraction, Number, Share
from mpitrain.errors import BadInput


class Asgd(Algorithm, frozen=True, tag_field="name", tag="asgd"):
    """Asynchronous parameter server (Zhang 2013; Chan & Lane 2014)."""

    protocol = "server"
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
    preset: Literal["", "zhang2013", "chan2014"] = ""
    momentum: Fraction = 0.0  # the master's (Chan & Lane eq 3)
    gradient_decay: Share = 1.0  # β of α = β^(i−j) (Chan & Lane eq 5)
    minibatches: Count = 1  # n between two exchanges, at the least when until_free
    until_free: bool = False  # compute on until the master grants the exchange
    minibatches_most: Number = 0  # bound of until_free; 0: 10 n
    sampling: Literal["dispensed", "independent"] = "dispensed"
    order: Literal["free", "round-robin"] = "free"

    @property
    def most(self) -> int:
        """The most minibatches between two exchanges; exactly n in round-robin order."""
        if not self.until_free or self.order == "round-robin":
            return self.minibatches
        return max(self.minibatches_most or 10 * self.minibatches, self.minibatches)

    def workers(self, ranks: int) -> int:
        return max(ranks - 1, 1)


class Served(Algorithm, frozen=True):
    """DOWNPOUR's relatives whose master computes: they run on the parameter server."""

    protocol = "server"
    gradient_decay: ClassVar = 1.0
    momentum: ClassVar = 0.0
    until_free: ClassVar = False
    sampling: Literal["dispensed", "independent", "chunked"] = "dispensed"
    loaders: Count = 4
    order: Literal["free", "round-robin"] = "free"

    @property
    def minibatches(self) -> int:
        """τ, by the name that the server knows."""
        return getattr(self, "tau", 1)

    @property
    def most(self) -> int:
        """The most minibatches between two exchanges."""
        return self.minibatches

    def workers(self, ranks: int) -> int:
        return max(ranks - 1, 1)

    def check_steps(self, steps: int) -> None:
        if self.minibatches > steps:
            raise BadInput(f"algorithm.tau = {self.minibatches}: longer than the {steps} minibatches that a worker has")


class Mdownpour(Served, frozen=True, tag_field="name", tag="mdownpour"):
    """Momentum DOWNPOUR, τ = 1: the master keeps the velocity."""

    training: ClassVar = {"learning_rate": 0.003, "epochs": 20.0}
    delta: Fraction = 0.9


class Adownpour(Served, frozen=True, tag_field="name", tag="adownpour"):
    """DOWNPOUR with the average of the centre over time beside it."""

    training: ClassVar = {"learning_rate": 0.03, "epochs": 20.0}
    tau: Count = 1


class Mvadownpour(Served, frozen=True, tag_field="name", tag="mvadownpour"):
    """DOWNPOUR with a moving average of the centre beside it."""

    training: ClassVar = {"learning_rate": 0.03, "epochs": 20.0}
    tau: Count = 1
    average_rate: Share = 0.01  # the paper's runs, of more updates: 0.001
