"""Asynchronous ADMM (Zhang, Choromanska & LeCun 2015, §4, equations 9–11), with λ/ρ in place of λ; λ₀ = 0.

In a turn, a worker reads x̃ and calls `dual_ascent`, τ times `step` with fixed λ and x̃, and `centre_move`, whose d is
added to the centre. Each worker keeps `contribution`, its share in the centre, which starts at x̃₀ wherever the worker
itself starts: the centre is the mean of the contributions, and an initial error of the mean would never vanish.
"""

from typing import ClassVar, Literal

import numpy as np

from mpitrain.algorithms.centred import Elastic
from mpitrain.algorithms.optimizers import Descent, Fast, Optimizer, plain, with_momentum
from mpitrain.algorithms.roles import WorkerRule
from mpitrain.algorithms.space import COMMON, MOMENTA, PERIODS, Between
from mpitrain.flat import Array, scratch_for
from mpitrain.keys import Fraction, NotNegative


def dual_ascent(lam: Array, x: Array, centre: Array, scratch: Array) -> None:
    """Equation 9."""
    # λⁱ ← λⁱ − (xⁱ − x̃)
    np.subtract(x, centre, out=scratch)
    np.subtract(lam, scratch, out=lam)


def step(x: Array, u: Array, lam: Array, centre: Array, scratch: Array, *, eta: float, rho: float) -> None:
    """Equation 10, with the increment u of a local step instead of −ηg(xⁱ).

    The paper mentions a momentum variant (§5, footnote 3) without defining it; with Nesterov's velocity as u, this is
    the analogue of equation 7.
    """
    # xⁱ ← (xⁱ + u + ηρ(λⁱ + x̃))/(1 + ηρ), as x + (ηρ/(1 + ηρ))(λ + x̃ − x): rounding 1 + ηρ cannot shrink x
    np.add(lam, centre, out=scratch)
    np.subtract(scratch, x, out=scratch)
    np.multiply(scratch, eta * rho / (1.0 + eta * rho), out=scratch)
    np.add(x, scratch, out=x)
    np.multiply(u, 1.0 / (1.0 + eta * rho), out=scratch)
    np.add(x, scratch, out=x)


def centre_move(d: Array, contribution: Array, x: Array, lam: Array, scratch: Array, *, workers: int) -> None:
    """Equation 11 as a change: x̃ ← x̃ + d preserves x̃ = (1/p)Σ(xⁱ − λⁱ) if only worker i has moved."""
    # d ← ((xⁱ − λⁱ) − contribution)/p
    np.subtract(x, lam, out=scratch)
    np.subtract(scratch, contribution, out=d)
    np.divide(d, workers, out=d)
    # contribution ← xⁱ − λⁱ
    np.positive(scratch, out=contribution)


class Admm(Elastic, frozen=True, tag_field="name", tag="admm"):
    """Asynchronous ADMM (equations 9 to 11)."""

    workers_change = False  # the centre is a mean over all of them
    training: ClassVar = {"learning_rate": 0.05, "epochs": 20.0}
    space: ClassVar = {**COMMON, "tau": PERIODS, "rho": Between(0.1, 10.0), "delta": MOMENTA}
    rho: NotNegative = 1.0  # ρ, the penalty
    delta: Fraction = 0.0  # δ, the momentum of the momentum variant
    start: Literal["same", "different"] = "same"  # whether all workers start at the centre, or from different seeds

    @property
    def starts_apart(self) -> bool:
        return self.start == "different"

    def optimizer(self, fast: Fast = plain) -> Optimizer:
        return with_momentum(self.delta, fast=fast)

    def worker(self, x: Array, centre: Array, workers: int, fast: Fast) -> "AdmmWorker":
        return AdmmWorker(x, centre, self.optimizer(fast), self.rho, workers)


class AdmmWorker(WorkerRule):
    """An exchange ends the previous turn (equation 11) and begins the next one (equation 9); steps are equation 10.

    In round-robin order equation 11 ends the turn itself, before the next worker begins: the scheme of §4.
    """

    whole_turns = True

    def __init__(self, x: Array, centre: Array, optimizer: Optimizer, rho: float, workers: int) -> None:
        self.rho, self.workers = rho, workers
        self.local = Descent(optimizer, x.copy())
        self.x, self.lam, self.contribution = self.local.x, np.zeros_like(x), centre.copy()
        self.frozen = centre.copy()  # x̃ at the beginning of the turn
        own = {"x": self.x, "lambda": self.lam, "contribution": self.contribution, "frozen": self.frozen}
        self.vectors = {**own, **self.local.buffers}
        self._d, self._scratch = np.empty_like(x), scratch_for(x)

    def exchange(self, piece: slice, centre: Array, t: int) -> Array:
        d, x, lam, frozen = self._d[piece], self.x[piece], self.lam[piece], self.frozen[piece]
        scratch = self._scratch[: len(d)]
        # x̃ ← x̃ + ((xⁱ − λⁱ) − contribution)/p, after the first turn
        if t:
            centre_move(d, self.contribution[piece], x, lam, scratch, workers=self.workers)
        else:
            d.fill(0)
        np.add(centre, d, out=frozen)
        # λⁱ ← λⁱ − (xⁱ − x̃)
        dual_ascent(lam, x, frozen, scratch)
        return d

    def step(self, part: slice, g: Array, eta: float, t: int, first: bool) -> None:
        # xⁱ ← (xⁱ + u + ηρ(λⁱ + x̃))/(1 + ηρ)
        x, lam, frozen, scratch = self.x[part], self.lam[part], self.frozen[part], self._scratch[: len(g)]
        u = self.local.increment(part, g, eta, t)
        step(x, u, lam, frozen, scratch, eta=eta, rho=self.rho)
        self.local.look(part)

    def pending(self, piece: slice) -> Array:
        d = self._d[piece]
        scratch = self._scratch[: len(d)]
        centre_move(d, self.contribution[piece], self.x[piece], self.lam[piece], scratch, workers=self.workers)
        return d

    def restart(self, piece: slice, centre: Array) -> None:
        super().restart(piece, centre)
        for vector in (self.contribution, self.frozen):
            np.copyto(vector[piece], centre)
        self.lam[piece].fill(0)
