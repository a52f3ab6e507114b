"""DOWNPOUR (Dean et al. 2012) and its relatives (Zhang, Choromanska & LeCun 2015, Supplement).

A worker of DOWNPOUR pushes its accumulated update and pulls the centre whenever τ divides its clock. At the end, it
pushes the update that is left.
"""

from collections.abc import Callable
from typing import ClassVar

import numpy as np

from mpitrain.algorithms.averaging import moving_average
from mpitrain.algorithms.centred import Elastic
from mpitrain.algorithms.optimizers import Buffers, Descent, Fast, Optimizer
from mpitrain.algorithms.optimizers.sgd import behind, mdownpour
from mpitrain.algorithms.roles import MasterRule, Merge, WorkerRule
from mpitrain.algorithms.server import Served, ServerRule
from mpitrain.algorithms.space import COMMON, PERIODS, Choice, MomentumChoice
from mpitrain.flat import Array
from mpitrain.keys import Count, Fraction, Share


class Downpour(Elastic, frozen=True, tag_field="name", tag="downpour"):
    """DOWNPOUR (Dean et al. 2012)."""

    training: ClassVar = {"learning_rate": 0.03, "epochs": 20.0}
    space: ClassVar = {**COMMON, "tau": PERIODS, "centre": Choice(("whole", "sharded"))}
    tau: Count = 1  # τ: minibatches between two exchanges

    def worker(self, x: Array, centre: Array, workers: int, fast: Fast) -> "DownpourWorker":
        return DownpourWorker(x, self.optimizer(fast))


class DownpourWorker(WorkerRule):
    """Push, pull, τ local steps."""

    def __init__(self, x: Array, optimizer: Optimizer) -> None:
        self.local = Descent(optimizer, x.copy())
        self.x, self.v = self.local.x, np.zeros_like(x)
        self.vectors = {"x": self.x, "v": self.v, **self.local.buffers}
        self._pushed = np.empty_like(x)

    def exchange(self, piece: slice, centre: Array, t: int) -> Array:
        pushed = self._taken(piece)
        # x̃ ← x̃ + vⁱ;  xⁱ ← x̃;  vⁱ ← 0
        np.add(centre, pushed, out=centre)
        np.copyto(self.x[piece], centre)
        self.local.look(piece)
        return pushed

    def step(self, part: slice, g: Array, eta: float, t: int, first: bool) -> None:
        # xⁱ ← xⁱ + u;  vⁱ ← vⁱ + u, where u is −ηg for SGD
        u = self.local.increment(part, g, eta, t)
        for vector in (self.x[part], self.v[part]):
            np.add(vector, u, out=vector)
        self.local.look(part)

    def pending(self, piece: slice) -> Array:
        return self._taken(piece)

    def _taken(self, piece: slice) -> Array:
        """A piece of the accumulated update, which is 0 from then on."""
        np.copyto(self._pushed[piece], self.v[piece])
        self.v[piece].fill(0)
        return self._pushed[piece]

    def restart(self, piece: slice, centre: Array) -> None:
        super().restart(piece, centre)
        self.v[piece].fill(0)


class Mdownpour(Served, frozen=True, tag_field="name", tag="mdownpour"):
    """Momentum DOWNPOUR, τ = 1: the master keeps the velocity. Θ is y = x + δv, where workers take gradients."""

    model_from = ("theta", "velocity")
    training: ClassVar = {"learning_rate": 0.003, "epochs": 20.0}
    space: ClassVar = {**COMMON, "delta": MomentumChoice((0.5, 0.8, 0.9))}
    delta: Fraction = 0.9  # δ, the momentum of the master

    def beside(self, theta: Array) -> Buffers:
        return {"velocity": np.zeros_like(theta)}

    @property
    def units(self) -> tuple[object, ...]:
        return (self.delta,)  # Θ is ahead by δv

    def model(self, vectors: Buffers) -> Array:
        """x = y − δv."""
        return behind(vectors, self.delta)

    def master(self, fast: Fast) -> MasterRule:
        return _MdownpourMaster(self.delta, fast)


class _MdownpourMaster(MasterRule):
    def __init__(self, delta: float, fast: Fast) -> None:
        self._delta, self._rule = delta, fast(mdownpour)

    def merge(self, vectors: Buffers, delta: Array, scratch: Array, at: Merge) -> None:
        self._rule(vectors["theta"], vectors["velocity"], delta, scratch, eta=at.eta, delta=self._delta)


class Adownpour(Served, frozen=True, tag_field="name", tag="adownpour"):
    """DOWNPOUR with the mean of the centre over time."""

    model_from = ("average",)
    training: ClassVar = {"learning_rate": 0.03, "epochs": 20.0}
    tau: Count = 1  # τ: minibatches between two exchanges

    @property
    def period(self) -> int:
        return self.tau

    def master(self, fast: Fast) -> MasterRule:
        return _AveragingMaster(self.averaging_rate, fast)


class Mvadownpour(Adownpour, frozen=True, tag_field="name", tag="mvadownpour"):
    """DOWNPOUR with a moving average of the centre."""

    average_rate: Share = 0.01  # rate of the moving average; the paper's runs, of more updates: 0.001

    def averaging_rate(self, t: int) -> float:
        return self.average_rate


class _AveragingMaster(ServerRule):
    """DOWNPOUR, which adds −η times the sum of τ gradients to the centre.

    x̃_t is included in the average z just before update t + 1, as in the sequential averages.
    """

    def __init__(self, averaging_rate: Callable[[int], float], fast: Fast) -> None:
        super().__init__(0.0, 1.0, fast)
        self._averaging_rate, self._average = averaging_rate, fast(moving_average)

    def merge(self, vectors: Buffers, delta: Array, scratch: Array, at: Merge) -> None:
        self._average(vectors["average"], vectors["theta"], scratch, rate=self._averaging_rate(at.t - at.began))
        super().merge(vectors, delta, scratch, at)
