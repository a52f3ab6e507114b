"""Elastic averaging (Zhang, Choromanska & LeCun 2015, §3): EASGD and EAMSGD, asynchronous and synchronous.

At an exchange, a worker computes d by `elastic_difference` from the centre that it read, and d is added to the centre
(`move_centre`). The gradient is taken at the x from before the exchange, so that both can overlap; then d is subtracted
from x (`give_up`), which takes its optimizer's step: SGD in Algorithm 1 and equation 5, Nesterov's momentum in
Algorithm 2 and equation 7.
"""

from collections.abc import Callable
from typing import ClassVar, Literal

import numpy as np

from mpitrain.algorithms.averaging import moving_average
from mpitrain.algorithms.centred import Elastic
from mpitrain.algorithms.optimizers import Buffers, Descent, Fast, Optimizer, plain, with_momentum
from mpitrain.algorithms.roles import AveragingRule, WorkerRule
from mpitrain.algorithms.space import COMMON, PERIODS, Between, Choice, MomentumChoice
from mpitrain.errors import BadInput
from mpitrain.flat import Array, scratch_for
from mpitrain.keys import Fraction, NotNegative

IN_STEP = {**COMMON, "tau": PERIODS, "beta": Between(0.3, 0.95)}
ELASTIC = {**IN_STEP, "centre": Choice(("whole", "sharded"))}
WITH_MOMENTUM = {"delta": MomentumChoice((0.5, 0.8, 0.9, 0.95, 0.99))}


def elastic_difference(d: Array, x: Array, centre: Array, *, alpha: float) -> None:
    """The symmetric force between a worker and the centre."""
    # d ← α(x − x̃)
    np.subtract(x, centre, out=d)
    np.multiply(d, alpha, out=d)


def move_centre(centre: Array, d: Array) -> None:
    """Step b) of Algorithms 1 and 2, on the centre."""
    # x̃ ← x̃ + α(x − x̃)
    np.add(centre, d, out=centre)


def give_up(x: Array, d: Array) -> None:
    """Step a) of Algorithms 1 and 2, on the worker, just before its own step."""
    # xⁱ ← xⁱ − α(x − x̃)
    np.subtract(x, d, out=x)


def easgd_condition(eta: Array, alpha: Array, together: int = 1) -> Array:
    """0 ≤ η ≤ 2 and 0 ≤ α ≤ (4 − 2η)/(2 + (2 − η)q), where q of the p workers move the centre `together`.

    One after another, q = 1: α ≤ (4 − 2η)/(4 − η), sufficient for every p, exact for odd p, not necessary for even p.
    All at once, q = p (equations 5 and 6): exact; the workers' mean and the centre have the map
    [[1 − η − α, α], [pα, 1 − pα]].
    """
    return (eta >= 0) & (eta <= 2) & (alpha >= 0) & (alpha * (2 + (2 - eta) * together) <= 4 - 2 * eta)


class AttractingCentre(Elastic, frozen=True):
    """A centre that attracts workers at a moving rate, given as α, as β = pα, or as ρ = α/η; default: β = 0.9."""

    alpha: NotNegative | None = None  # α, the moving rate; give one of `alpha`, `beta` and `rho`
    beta: NotNegative | None = None  # β = pα with p workers; 0.9 when none of the three is given
    rho: NotNegative | None = None  # ρ = α/η, the penalty
    start: Literal["same", "different"] = "same"
    """Whether all workers start at the centre, or from different seeds, which trap the algorithm (footnote 7)."""

    def check(self) -> None:
        if sum(value is not None for value in (self.alpha, self.beta, self.rho)) > 1:
            raise BadInput("algorithm.alpha, algorithm.beta, algorithm.rho: give one of them")

    def warnings(self, eta: float, workers: int) -> list[tuple[str, dict[str, float]]]:
        alpha = self.moving_rate(eta, workers)
        if easgd_condition(np.float64(eta), np.float64(alpha), workers if self.together else 1):
            return []
        bound = "(4−2η)/(2+(2−η)p)" if self.together else "(4−2η)/(4−η)"
        line = f"α = {alpha:g} with η = {eta:g} is outside 0 ≤ η ≤ 2, 0 ≤ α ≤ {bound}: may not be stable"
        return [(line, {"alpha": alpha, "learning_rate": eta})]

    @property
    def starts_apart(self) -> bool:
        return self.start == "different"

    @property
    def follows_rate(self) -> bool:
        return self.rho is not None

    def moving_rate(self, eta: float, workers: int) -> float:
        """α of one exchange at the learning rate η with p workers."""
        if self.alpha is not None:
            return self.alpha
        if self.rho is not None:
            return eta * self.rho
        return (0.9 if self.beta is None else self.beta) / workers  # not divided by the communication period τ

    def resumed(self, eta: float, before: int, now: int) -> str:
        was, is_now = self.moving_rate(eta, before), self.moving_rate(eta, now)
        return "" if was == is_now else f"α = β/p is {is_now:.3g}, was {was:.3g}; algorithm.alpha keeps it"

    def worker(self, x: Array, centre: Array, workers: int, fast: Fast) -> "ElasticWorker":
        return ElasticWorker(x, self.optimizer(fast), self.moving_rate)


class Easgd(AttractingCentre, frozen=True, tag_field="name", tag="easgd"):
    """Asynchronous EASGD (Algorithm 1)."""

    any_optimizer = True
    loop_keys = ("tau", "alpha", "beta", "rho")
    training: ClassVar = {"learning_rate": 0.1, "epochs": 20.0}
    space: ClassVar = ELASTIC


class Eamsgd(AttractingCentre, frozen=True, tag_field="name", tag="eamsgd"):
    """Asynchronous EAMSGD (Algorithm 2)."""

    loop_instead = "its gradient belongs at x + δv, which a loop does not know; easgd with a momentum optimizer fits"
    training: ClassVar = {"learning_rate": 0.02, "epochs": 20.0}
    space: ClassVar = ELASTIC | WITH_MOMENTUM
    delta: Fraction = 0.9  # δ, the workers' momentum; the paper's networks take 0.99

    def optimizer(self, fast: Fast = plain) -> Optimizer:
        return with_momentum(self.delta, fast=fast)


class _InStep(AttractingCentre, frozen=True):
    """All ranks are workers and take every step together."""

    protocol = "model-averaging"
    in_teams = False
    workers_change = False
    order: Literal["free"] = "free"  # all take every step together: there are no turns
    centre: Literal["whole"] = "whole"  # every rank has all of x̃

    def averaging(self, x: Array, vectors: Buffers, ranks: int, fast: Fast) -> "ElasticRule":
        return ElasticRule(x, self.optimizer(fast), self.moving_rate, self.tau)


class EasgdSync(_InStep, Easgd, frozen=True, tag_field="name", tag="easgd-sync"):
    """Synchronous EASGD (equations 5 and 6)."""

    space: ClassVar = IN_STEP


class EamsgdSync(_InStep, Eamsgd, frozen=True, tag_field="name", tag="eamsgd-sync"):
    """Synchronous EAMSGD (equations 7 and 6)."""

    loop_instead = "its gradient belongs at x + δv, which a loop does not know; easgd-sync with momentum fits"
    space: ClassVar = IN_STEP | WITH_MOMENTUM


class ElasticWorker(WorkerRule):
    """Algorithms 1 and 2, which differ in the optimizer of the local step."""

    alpha = 0.0

    def __init__(self, x: Array, optimizer: Optimizer, moving_rate: Callable[[float, int], float]) -> None:
        self.local, self._moving_rate = Descent(optimizer, x.copy()), moving_rate
        self.x, self._d = self.local.x, np.empty_like(x)
        self.vectors = {"x": self.x, **self.local.buffers}

    def begin(self, eta: float, workers: int) -> None:
        self.alpha = self._moving_rate(eta, workers)

    def exchange(self, piece: slice, centre: Array, t: int) -> Array:
        # d ← α(x − x̃);  x̃ ← x̃ + d
        elastic_difference(self._d[piece], self.x[piece], centre, alpha=self.alpha)
        return self._d[piece]

    def step(self, part: slice, g: Array, eta: float, t: int, first: bool) -> None:
        # xⁱ ← (xⁱ − d) + u, with g from before the exchange
        if first:
            give_up(self.x[part], self._d[part])
        self.local.step(part, g, eta, t)


class ElasticRule(ElasticWorker, AveragingRule):
    """Equations 5 to 7. When τ divides the clock, all xⁱ are summed while the gradient is computed."""

    overlaps = True

    def __init__(self, x: Array, optimizer: Optimizer, moving_rate: Callable[[float, int], float], tau: int) -> None:
        super().__init__(x, optimizer, moving_rate)
        self._tau, self._mean, self._scratch = tau, np.empty_like(x), scratch_for(x)

    def due(self, t: int) -> bool:
        return t % self._tau == 0

    @property
    def summed(self) -> list[Array]:
        return [self._mean]

    def offer(self, b: slice, centre: Array, t: int) -> None:
        self.exchange(b, centre, t)
        np.copyto(self._mean[b], self.x[b])

    def take(self, b: slice, vectors: Buffers, ranks: int) -> None:
        # x̃ ← (1 − β)x̃ + β(1/p)Σxⁱ, β = pα: the average over space, of all xⁱ before their step, and time
        mean, scratch = self._mean[b], self._scratch[: b.stop - b.start]
        np.divide(mean, ranks, out=mean)
        moving_average(vectors["theta"], mean, scratch, rate=ranks * self.alpha)
