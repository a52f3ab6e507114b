"""Block momentum that waits for nobody: delayed Nesterov momentum (Liu et al. 2024, arXiv 2401.09135).

Each worker takes its τ_w steps from the Θ that it has pulled, and pushes Δ = Θ_pulled − x. The server moves by each Δ
as it comes, and by the momentum after every N of them, N the number of workers.
"""

import numpy as np

from mpitrain.algorithms.optimizers import Buffers, Descent, Optimizer
from mpitrain.algorithms.optimizers.outer import LookAhead
from mpitrain.algorithms.roles import MasterRule, Merge, RoundRule
from mpitrain.flat import Array


class MovedBy(RoundRule):
    """Δ = Θ_pulled − x after a round of steps from Θ_pulled. `resets`: each round begins with fresh buffers."""

    def __init__(self, theta: Array, total: Array, optimizer: Optimizer, resets: bool) -> None:
        self.local, self._total, self._resets = Descent(optimizer, theta), total, resets
        self._t = 0

    def target(self, gradient: Array, first: bool) -> Array:
        return gradient

    def begin(self) -> None:
        np.copyto(self._total, self.local.x)
        if self._resets:
            self.local.restart(slice(0, self.local.x.size), self.local.x)
            self._t = 0
        else:
            self.local.look()

    def step(self, b: slice, g: Array, eta: float, first: bool, last: bool) -> None:
        self.local.step(b, g, eta, self._t)
        if last:
            d = self._total[b]
            np.subtract(d, self.local.x[b], out=d)  # the same object: else CuPy makes a copy first

    def stepped(self) -> None:
        self._t += 1

    def end(self) -> None:
        np.subtract(self._total, self.local.x, out=self._total)


class DelayedMomentum(MasterRule):
    """Θ ← Θ − (ζ/N)Δ at each arrival, S ← S − Δ/N; at each N-th u ← μ(u + ζS), Θ ← Θ + u, S ← 0.

    u = μζv is what the momentum v adds. With `ahead` "none", Θ moves by the previous momentum, as without look-ahead;
    "start": what is evaluated is Θ − u. `weighs`: a Δ of fewer samples than a whole round counts for less.
    """

    def __init__(self, momentum: float | None, rate: float, ahead: LookAhead, weighs: bool) -> None:
        self._mu, self._rate, self._ahead, self._weighs = momentum, rate, ahead, weighs

    def merge(self, vectors: Buffers, delta: Array, scratch: Array, at: Merge) -> None:
        theta, moved, u = vectors["theta"], vectors["moved"], vectors["velocity"]
        weight = at.share if self._weighs else 1.0
        # Θ ← Θ − (ζ/N)Δ;  ζS ← ζS − (ζ/N)Δ
        np.multiply(delta, self._rate * weight / at.workers, out=scratch)
        np.subtract(theta, scratch, out=theta)
        np.subtract(moved, scratch, out=moved)
        if (at.t + 1) % at.workers:
            return
        if self._ahead == "none":
            np.add(theta, u, out=theta)
        # u ← μ(u + ζS);  Θ ← Θ + u;  S ← 0
        np.add(u, moved, out=u)
        np.multiply(u, 1 - 1 / at.workers if self._mu is None else self._mu, out=u)
        if self._ahead != "none":
            np.add(theta, u, out=theta)
        moved.fill(0)
