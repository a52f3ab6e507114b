"""Krizhevsky's update of parts of a rank's vector, at the rate that belongs to each part's own batch size."""

from collections.abc import Iterable

import numpy as np

from mpitrain.algorithms import Hybrid
from mpitrain.flat import Array, Layout, blocks
from mpitrain.rules.rates import scaled_by_theory, scaled_in_practice
from mpitrain.rules.sgd import krizhevsky


def scaled(options: Hybrid, eta: float, decay: float, batch: int) -> tuple[float, float]:
    """Rate and decay for a minibatch of `batch`, given those for `base_batch` (Krizhevsky 2014, §5)."""
    if options.scaling == "none":
        return eta, decay
    scale = scaled_by_theory if options.scaling == "theory" else scaled_in_practice
    return scale(eta, decay, batch / options.base_batch)


class Update:
    """inc ← μ·inc − ω·ε·w + ε·⟨−∂E/∂w⟩; w ← w + inc. Biases without decay, at `bias_rate` times the rate.

    `l2` is the network's: ω = weight_decay + l2 is the same rule as l2 in the gradient.
    """

    def __init__(
        self, options: Hybrid, layout: Layout, theta: Array, velocity: Array, gradient: Array, l2: float
    ) -> None:
        self.options, self.decay = options, options.weight_decay + l2
        self.theta, self.velocity, self.gradient = theta, velocity, gradient
        self._decays = {p.name: p.decay for p in layout.parameters}
        self._slices = layout.slices
        self._scratch = np.empty_like(theta[: next(blocks(theta.size)).stop])

    def __call__(self, names: Iterable[str], eta: float, batch: int) -> None:
        """Update these parameters by their gradients, means over `batch` examples; `eta` is for `base_batch`."""
        rate, decay = scaled(self.options, eta, self.decay, batch)
        for name in names:
            part = self._slices[name]
            for b in blocks(part.stop - part.start):
                block = slice(part.start + b.start, part.start + b.stop)
                if self._decays[name]:
                    self._step(block, rate, decay)
                else:
                    self._step(block, rate * self.options.bias_rate, 0.0)

    def _step(self, b: slice, eta: float, decay: float) -> None:
        scratch = self._scratch[: b.stop - b.start]
        mu = self.options.momentum
        krizhevsky(self.theta[b], self.velocity[b], self.gradient[b], scratch, eta=eta, mu=mu, decay=decay)
