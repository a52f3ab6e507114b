"""Krizhevsky's update of parts of a rank's vector, at the rate that belongs to each part's own batch size."""

from collections.abc import Iterable

from mpitrain.algorithms import Hybrid
from mpitrain.device.cpu import CPU, Cpu
from mpitrain.flat import Array, Layout, block_of, block_slices, scratch_for
from mpitrain.rules.rates import scaled_by_theory, scaled_in_practice
from mpitrain.rules.sgd import krizhevsky


def scaled(options: Hybrid, eta: float, decay: float, batch: int) -> tuple[float, float]:
    """Rate and decay for a minibatch of `batch`, given those for `base_batch` (Krizhevsky 2014, §5)."""
    if options.scaling == "none":
        return eta, decay
    scale = scaled_by_theory if options.scaling == "theory" else scaled_in_practice
    return scale(eta, decay, batch / options.base_batch)


class Update:
    """inc ← μ·inc − ω·ε·w + ε·⟨−∂E/∂w⟩; w ← w + inc. Biases without weight decay, at `bias_rate` times the rate.

    `l2` and `l2_of_biases` are the network's: ω = weight_decay + l2 is the same rule as l2 in the gradient.
    """

    def __init__(
        self,
        options: Hybrid,
        layout: Layout,
        theta: Array,
        velocity: Array,
        gradient: Array,
        l2: float,
        l2_of_biases: float = 0.0,
        device: Cpu = CPU,
    ) -> None:
        self.options, self.decay, self.decay_of_biases = options, options.weight_decay + l2, l2_of_biases
        self.theta, self.velocity, self.gradient = theta, velocity, gradient
        self._decays = {p.name: p.decay for p in layout.parameters}
        self._slices = layout.slices
        self._scratch, self._rule = scratch_for(theta), device.fast(krizhevsky)

    def __call__(self, names: Iterable[str], eta: float, batch: int, bias_scale: float = 1.0) -> None:
        """Update these parameters by their gradients, means over `batch` examples; `eta` is for `base_batch`, and
        `bias_scale` what the stages have made of the biases' rate beside it."""
        rate, decay = scaled(self.options, eta, self.decay, batch)
        own = self.options.bias_rate * bias_scale
        _, decay_of_biases = scaled(self.options, eta * own, self.decay_of_biases, batch)
        for name in names:
            for block in block_slices(self._slices[name], block_of(self.theta)):
                if self._decays[name]:
                    self._step(block, rate, decay)
                else:
                    self._step(block, rate * self.options.bias_rate * bias_scale, decay_of_biases)

    def _step(self, b: slice, eta: float, decay: float) -> None:
        scratch = self._scratch[: b.stop - b.start]
        mu = self.options.momentum
        self._rule(self.theta[b], self.velocity[b], self.gradient[b], scratch, eta=eta, mu=mu, decay=decay)
