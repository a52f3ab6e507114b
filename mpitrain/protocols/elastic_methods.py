"""What a worker of EASGD, EAMSGD, DOWNPOUR and ADMM keeps, and its two moments: the exchange and the step.

`exchange` gets a copy of a piece of x̃ and returns what x̃ is to gain there; `step` takes a part of the gradient at
`at`. Both work on any slice. No messages here, and the mathematics is in mpitrain/rules.
"""

from typing import Protocol

import numpy as np

from mpitrain.algorithms import Admm, Downpour, Eamsgd, Easgd, Elastic
from mpitrain.device.cpu import CPU, Cpu
from mpitrain.flat import Array, scratch_for
from mpitrain.rules import admm, downpour, elastic, sgd


class Method(Protocol):
    """One worker's arithmetic. `vectors` are what a checkpoint keeps of it, by name."""

    vectors: dict[str, Array]
    at: Array  # where the next gradient is taken

    def exchange(self, piece: slice, centre: Array, t: int) -> Array:
        """The exchange at local time t; what x̃'s piece gains, untouched until the next exchange."""

    def step(self, part: slice, g: Array, eta: float, first: bool) -> None:
        """One step of a part; `first` after an exchange."""

    def pending(self, piece: slice) -> Array | None:
        """At the end: what x̃ is still to gain, None where nothing is."""

    def restart(self, piece: slice, centre: Array) -> None:
        """Begin at x̃, without a past."""

    def restored(self) -> None:
        """The vectors have been filled from a checkpoint."""


def method_of(options: Elastic, x: Array, centre: Array, workers: int, device: Cpu = CPU) -> Method:
    """The method of an algorithm's options, whose worker starts at x and its centre at `centre`; both are copied.

    They lie on the device.
    """
    match options:
        case Easgd():
            return EasgdWorker(x, device)
        case Eamsgd():
            return EamsgdWorker(x, options.delta, device)
        case Downpour():
            return DownpourWorker(x)
        case Admm():
            return AdmmWorker(x, centre, options, workers)
        case _:
            raise TypeError(f"{type(options).__name__} has no asynchronous worker")


class EasgdWorker:
    """Algorithm 1."""

    alpha = 0.0  # set before each exchange

    def __init__(self, x: Array, device: Cpu = CPU) -> None:
        self.x = self.at = x.copy()
        self.vectors = {"x": self.x}
        self._d, self._scratch = np.empty_like(x), scratch_for(x)
        self._easgd_step = device.fast(elastic.easgd_step)

    def exchange(self, piece: slice, centre: Array, t: int) -> Array:
        # d ← α(x − x̃);  x̃ ← x̃ + d
        elastic.elastic_difference(self._d[piece], self.x[piece], centre, alpha=self.alpha)
        return self._d[piece]

    def step(self, part: slice, g: Array, eta: float, first: bool) -> None:
        # xⁱ ← xⁱ − d − ηg(x)
        d = self._d[part] if first else None
        self._easgd_step(self.x[part], g, d, self._scratch[: len(g)], eta=eta)

    def pending(self, piece: slice) -> None:
        return None

    def restart(self, piece: slice, centre: Array) -> None:
        np.copyto(self.x[piece], centre)

    def restored(self) -> None:
        pass


class EamsgdWorker(EasgdWorker):
    """Algorithm 2."""

    def __init__(self, x: Array, delta: float, device: Cpu = CPU) -> None:
        super().__init__(x)
        self._eamsgd_step, self._look_ahead = device.fast(elastic.eamsgd_step), device.fast(sgd.look_ahead)
        self.delta, self.v, self.at = delta, np.zeros_like(x), x.copy()
        self.vectors["v"] = self.v

    def step(self, part: slice, g: Array, eta: float, first: bool) -> None:
        # vⁱ ← δvⁱ − ηg(x + δvⁱ);  xⁱ ← xⁱ − d + vⁱ
        d, x, v = self._d[part] if first else None, self.x[part], self.v[part]
        self._eamsgd_step(x, v, g, d, self._scratch[: len(g)], eta=eta, delta=self.delta)
        self._look_ahead(self.at[part], x, v, self.delta)

    def restart(self, piece: slice, centre: Array) -> None:
        super().restart(piece, centre)
        self.v[piece].fill(0)
        np.copyto(self.at[piece], centre)

    def restored(self) -> None:
        sgd.look_ahead(self.at, self.x, self.v, self.delta)


class DownpourWorker:
    """DOWNPOUR: push, pull, τ steps of SGD."""

    def __init__(self, x: Array) -> None:
        self.x = self.at = x.copy()
        self.v = np.zeros_like(x)
        self.vectors = {"x": self.x, "v": self.v}
        self._pushed, self._scratch = np.empty_like(x), scratch_for(x)

    def exchange(self, piece: slice, centre: Array, t: int) -> Array:
        np.copyto(self._pushed[piece], self.v[piece])
        # x̃ ← x̃ + vⁱ
        downpour.push(centre, self.v[piece])
        # xⁱ ← x̃;  vⁱ ← 0
        downpour.pull(self.x[piece], self.v[piece], centre)
        return self._pushed[piece]

    def step(self, part: slice, g: Array, eta: float, first: bool) -> None:
        # xⁱ ← xⁱ − ηg(xⁱ);  vⁱ ← vⁱ − ηg(xⁱ)
        downpour.step(self.x[part], self.v[part], g, self._scratch[: len(g)], eta=eta)

    def pending(self, piece: slice) -> Array:
        np.copyto(self._pushed[piece], self.v[piece])
        self.v[piece].fill(0)
        return self._pushed[piece]

    def restart(self, piece: slice, centre: Array) -> None:
        downpour.pull(self.x[piece], self.v[piece], centre)

    def restored(self) -> None:
        pass


class AdmmWorker:
    """Asynchronous ADMM: a turn's equations 9 and 10 follow the exchange that ends the turn before with equation 11.

    The paper's analysis has one worker's turn after another; here, in round-robin order too, all take theirs at the
    same time, and x̃ is one round old.
    """

    def __init__(self, x: Array, centre: Array, options: Admm, workers: int) -> None:
        self.rho, self.delta, self.workers = options.rho, options.delta, workers
        self.x, self.lam, self.contribution = x.copy(), np.zeros_like(x), centre.copy()
        self.frozen = centre.copy()  # x̃ as the turn began
        self.v = np.zeros_like(x) if self.delta else None
        self.at = self.x if self.v is None else x.copy()
        self.vectors = {"x": self.x, "lambda": self.lam, "contribution": self.contribution, "frozen": self.frozen}
        if self.v is not None:
            self.vectors["v"] = self.v
        self._d, self._scratch = np.empty_like(x), scratch_for(x)

    def exchange(self, piece: slice, centre: Array, t: int) -> Array:
        d, x, lam, frozen = self._d[piece], self.x[piece], self.lam[piece], self.frozen[piece]
        scratch = self._scratch[: len(d)]
        # x̃ ← x̃ + ((xⁱ − λⁱ) − what x̃ holds of it)/p, once there has been a turn
        if t:
            admm.centre_move(d, self.contribution[piece], x, lam, scratch, workers=self.workers)
        else:
            d.fill(0)
        np.add(centre, d, out=frozen)
        # λⁱ ← λⁱ − (xⁱ − x̃)
        admm.dual_ascent(lam, x, frozen, scratch)
        return d

    def step(self, part: slice, g: Array, eta: float, first: bool) -> None:
        # xⁱ ← (xⁱ − ηg(xⁱ) + ηρ(λⁱ + x̃))/(1 + ηρ)
        x, lam, frozen, scratch = self.x[part], self.lam[part], self.frozen[part], self._scratch[: len(g)]
        if self.v is None:
            admm.step(x, g, lam, frozen, scratch, eta=eta, rho=self.rho)
            return
        v = self.v[part]
        admm.momentum_step(x, v, g, lam, frozen, scratch, eta=eta, rho=self.rho, delta=self.delta)
        sgd.look_ahead(self.at[part], x, v, self.delta)

    def pending(self, piece: slice) -> Array:
        d = self._d[piece]
        scratch = self._scratch[: len(d)]
        admm.centre_move(d, self.contribution[piece], self.x[piece], self.lam[piece], scratch, workers=self.workers)
        return d

    def restart(self, piece: slice, centre: Array) -> None:
        for vector in (self.x, self.contribution, self.frozen, self.at):
            np.copyto(vector[piece], centre)
        self.lam[piece].fill(0)
        if self.v is not None:
            self.v[piece].fill(0)

    def restored(self) -> None:
        if self.v is not None:
            sgd.look_ahead(self.at, self.x, self.v, self.delta)
