"""Algorithms with a centre that workers of their own go to: EASGD's family, DOWNPOUR, ADMM."""

from typing import TYPE_CHECKING, ClassVar, Literal

from mpitrain.algorithms.table import Algorithm, Count, Fraction, NotNegative, Number
from mpitrain.errors import BadInput
from mpitrain.rules import elastic

if TYPE_CHECKING:
    from mpitrain.config import Config


class Elastic(Algorithm, frozen=True):
    """What the algorithms with a centre x̃ and workers of their own xⁱ share (Zhang, Choromanska & LeCun 2015)."""

    protocol = "elastic"
    tau: Count = 10  # τ: minibatches between two exchanges
    rate_decay: NotNegative = 0.0  # γ of η/(1 + γt)^0.5, t the worker's own clock
    plateau: Number = 0  # minibatches of a window of rules/plateau.py; 0: no falls
    sampling: Literal["dispensed", "independent", "chunked"] = "dispensed"
    loaders: Count = 4  # k of "chunked": chunks shuffled together
    order: Literal["free", "round-robin"] = "free"
    centre: Literal["whole", "sharded"] = "whole"  # x̃ on rank 0, or a share of it on every rank

    def check(self, config: "Config") -> None:
        if self.centre == "sharded" and config.run.exchange == "messages":
            raise BadInput("algorithm.centre = 'sharded': needs one-sided access; run.exchange allows messages only")

    def workers(self, ranks: int) -> int:
        return max(ranks - 1, 1)

    def check_steps(self, steps: int) -> None:
        if self.tau > steps:
            raise BadInput(f"algorithm.tau = {self.tau}: longer than the {steps} minibatches that a worker has")


class Pulled(Elastic, frozen=True):
    """A centre that pulls with a moving rate, given as α, as β = pα, or as ρ = α/η; β = 0.9 when none is given."""

    alpha: NotNegative | None = None
    beta: NotNegative | None = None
    rho: NotNegative | None = None
    start: Literal["same", "different"] = "same"  # xⁱ = x̃, or other seeds, which trap it (footnote 7)

    def check(self, config: "Config") -> None:
        super().check(config)
        if sum(value is not None for value in (self.alpha, self.beta, self.rho)) > 1:
            raise BadInput("algorithm.alpha, algorithm.beta, algorithm.rho: give one of them")

    def moving_rate(self, eta: float, workers: int) -> float:
        """α of one exchange at the learning rate η with p workers."""
        if self.alpha is not None:
            return self.alpha
        if self.rho is not None:
            return elastic.alpha_from_rho(eta, self.rho)
        return elastic.alpha_from_beta(0.9 if self.beta is None else self.beta, workers)

    def resumed(self, eta: float, before: int, now: int) -> str:
        was, is_now = self.moving_rate(eta, before), self.moving_rate(eta, now)
        return "" if was == is_now else f"α = β/p is {is_now:.3g}, was {was:.3g}; algorithm.alpha keeps it"


class Easgd(Pulled, frozen=True, tag_field="name", tag="easgd"):
    """Asynchronous EASGD (Algorithm 1)."""

    training: ClassVar = {"learning_rate": 0.1, "epochs": 20.0}


class Eamsgd(Pulled, frozen=True, tag_field="name", tag="eamsgd"):
    """Asynchronous EAMSGD (Algorithm 2)."""

    training: ClassVar = {"learning_rate": 0.02, "epochs": 20.0}
    delta: Fraction = 0.9  # δ; the paper's networks take 0.99


class _InStep(Pulled, frozen=True):
    """All ranks are workers and take every step together."""

    protocol = "elastic-sync"

    def check(self, config: "Config") -> None:
        super().check(config)
        if any(stage.workers for stage in config.stages):
            raise BadInput("stages: a synchronous algorithm trains with all ranks; workers cannot change")
        if self.order != "free" or self.centre != "whole":
            raise BadInput("algorithm.order, algorithm.centre: not for an algorithm that has no master")

    def workers(self, ranks: int) -> int:
        return ranks


class EasgdSync(_InStep, frozen=True, tag_field="name", tag="easgd-sync"):
    """Synchronous EASGD (equations 5 and 6)."""

    training: ClassVar = {"learning_rate": 0.1, "epochs": 20.0}


class EamsgdSync(_InStep, frozen=True, tag_field="name", tag="eamsgd-sync"):
    """Synchronous EAMSGD (equations 7 and 6)."""

    training: ClassVar = {"learning_rate": 0.02, "epochs": 20.0}
    delta: Fraction = 0.9


class Downpour(Elastic, frozen=True, tag_field="name", tag="downpour"):
    """DOWNPOUR (Dean et al. 2012)."""

    training: ClassVar = {"learning_rate": 0.03, "epochs": 20.0}
    tau: Count = 1


class Admm(Elastic, frozen=True, tag_field="name", tag="admm"):
    """Asynchronous ADMM (equations 9 to 11)."""

    training: ClassVar = {"learning_rate": 0.05, "epochs": 20.0}
    rho: NotNegative = 1.0
    delta: Fraction = 0.0  # of the momentum variant
    start: Literal["same", "different"] = "same"

    def check(self, config: "Config") -> None:
        super().check(config)
        if any(stage.workers for stage in config.stages):
            raise BadInput("stages: admm's centre is a mean over all workers; their number cannot change")
