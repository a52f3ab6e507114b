"""Corrections of stale gradients from later work: gap-aware penalties (Barkai, Hakimi & Schuster, ICLR 2020) and DANA
(Hakimi, Barkai, Gabel & Schuster 2019).

A gradient was taken at Θ_j, and reaches a server at Θ_i.
"""

import numpy as np

from mpitrain.algorithms.optimizers import Buffers, Fast
from mpitrain.algorithms.optimizers.sgd import mdownpour
from mpitrain.algorithms.roles import MasterRule, Merge
from mpitrain.flat import Array

MEMORY = 0.999  # of the mean of squared gradients, by which gaps are measured
LEAST = 1e-37  # added to a length: changes only 0, by which nothing can be divided


def penalise(g: Array, now: Array, then: Array, squares: Array, out: Array, scratch: Array, *, unit: float) -> None:
    """Write the gradient g at Θ_j = `then`, divided elementwise by 1 + |Θ_i − Θ_j|/C, to `out`; Θ_i = `now`.

    C = `unit`·√q is the length of a usual step: q, the decaying mean of g² in `squares`, is updated first, and `unit`
    is the highest learning rate over √(1 − 0.999ᵗ), the correction of q's start at 0 after t updates.
    """
    # q ← 0.999 q + 0.001 g²
    np.multiply(g, g, out=out)
    np.multiply(out, 1 - MEMORY, out=out)
    np.multiply(squares, MEMORY, out=squares)
    np.add(squares, out, out=squares)
    # g C/(C + |Θ_i − Θ_j|), without 0/0 where all gradients so far were 0
    np.sqrt(squares, out=scratch)
    np.multiply(scratch, unit, out=scratch)
    np.subtract(now, then, out=out)
    np.abs(out, out=out)
    np.add(out, scratch, out=out)
    np.add(out, LEAST, out=out)
    np.divide(scratch, out, out=out)
    np.multiply(g, out, out=out)


class GapAware(MasterRule):
    """Divides each gradient by its gap, and hands it to another rule. `seen` is the worker's Θ_j."""

    def __init__(self, rule: MasterRule, fast: Fast) -> None:
        self._rule, self._penalise = rule, fast(penalise)
        self._penalised: Array | None = None

    def merge(self, vectors: Buffers, delta: Array, scratch: Array, at: Merge) -> None:
        unit = at.highest / (1 - MEMORY ** (at.t - at.began + 1)) ** 0.5
        if self._penalised is None:  # blocks come longest first
            self._penalised = np.empty_like(scratch)
        out = self._penalised[: delta.size]
        self._penalise(delta, vectors["theta"], vectors["seen"], vectors["squares"], out, scratch, unit=unit)
        self._rule.merge(vectors, out, scratch, at)


class Dana(MasterRule):
    """A velocity v_w of each worker; workers take gradients at Θ̂ = Θ + μ Σ_w v_w, where the server is expected to be
    when these gradients arrive.

    `theta` is Θ̂ and `velocity` the sum over all workers; `own` is v_w, which includes the factor η.
    """

    def __init__(self, mu: float, fast: Fast) -> None:
        self._mu, self._step = mu, fast(mdownpour)

    def merge(self, vectors: Buffers, delta: Array, scratch: Array, at: Merge) -> None:
        total, own = vectors["velocity"], vectors["own"]
        # Σv ← Σv − v_w + (μv_w − ηg)
        np.subtract(total, own, out=total)
        # v_w ← μv_w − ηg;  Θ ← Θ + v_w, so that Θ̂ ← Θ̂ − ηg + μv_w
        self._step(vectors["theta"], own, delta, scratch, eta=at.eta, delta=self._mu)
        np.add(total, own, out=total)
