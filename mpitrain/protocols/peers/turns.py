"""What a peer's turn puts into its residual: a gradient, a gradient with momentum, or what local steps have changed."""

from collections.abc import Callable

import numpy as np

from mpitrain.algorithms import SparseDelta
from mpitrain.algorithms.optimizers import Descent, Sgd
from mpitrain.algorithms.optimizers.sgd import accelerate
from mpitrain.compression.compressor import Compressor
from mpitrain.compression.residual import INDEX, Entries
from mpitrain.flat import Array, block_of, block_slices, scratch_for
from mpitrain.models.model import Ready
from mpitrain.protocols.peers.rounds import Steps
from mpitrain.sampling.queue import Work
from mpitrain.sampling.stages import Settings
from mpitrain.training.context import Session

#: Computes a minibatch's gradient at a point, and says of parts that they are final.
GradientAt = Callable[[Array, Work, Ready], None]


class Turns:
    """Of one rank. `gradient_at` writes into `gradient`; parts of the gradient that goes into the residual as it is
    are told to `on_ready`, those of others to `meanwhile`."""

    def __init__(
        self,
        session: Session,
        compressor: Compressor,
        gradient: Array,
        gradient_at: GradientAt,
        on_ready: Ready,
        meanwhile: Ready,
    ) -> None:
        self._options = options = SparseDelta.of(session.config.algorithm)
        self._theta, self._gradient, self._compressor = session.state.theta, gradient, compressor
        self._gradient_at, self._on_ready, self._meanwhile = gradient_at, on_ready, meanwhile
        self._per, self._samples = session.config.training.rate_per, session.state.queue.samples
        self._device, self._velocity = session.device, session.state.local.get("velocity")
        self._blocks = block_slices(slice(0, gradient.size), block_of(gradient))
        fast = session.device.fast
        self._local = Descent(Sgd(fast), np.empty_like(gradient)) if options.tau > 1 else None
        self._accelerate, self._scratch = fast(accelerate), scratch_for(gradient)

    def entries(self, steps: Steps, workers: int, emit: bool) -> Entries:
        """Take a turn in a round of this many workers; the entries to send, none unless `emit`."""
        options, (work, settings) = self._options, steps[-1]
        of_entries = self.rate_of_entries(settings, workers)
        if emit and options.error_decay < 1:
            np.multiply(self._compressor.residual, options.error_decay, out=self._compressor.residual)
        if options.density_warmup:
            self._compressor.target = options.density_at(work.epoch + work.start / self._samples)
        if self._local is not None:
            change = self._changed(self._local, steps)
            self._compressor.begin(1 / self._rate(settings), of_entries, emit)  # in gradients, as the threshold is
            return self._compressor.end(change)
        if self._velocity is not None:
            self._gradient_at(self._theta, work, self._meanwhile)
            self._compressor.begin(1, of_entries, emit)
            return self._with_momentum(self._velocity, work.count)
        self._compressor.begin(work.count, of_entries, emit)
        self._gradient_at(self._theta, work, self._on_ready)
        return self._compressor.end(self._gradient)

    def rate_of_entries(self, settings: Settings, workers: int) -> float:
        """By what an entry of a sum of gradients is multiplied where it is applied."""
        return self._rate(settings) / (workers if self._options.combine == "mean" else 1)

    def _rate(self, settings: Settings) -> float:
        """The learning rate of sums."""
        return self._options.rate(self._per, settings.learning_rate, settings.minibatch)

    def _changed(self, local: Descent, steps: Steps) -> Array:
        """Θ − x after local steps from Θ."""
        np.copyto(local.x, self._theta)
        for work, settings in steps:
            self._gradient_at(local.x, work, self._meanwhile)
            eta = self._rate(settings) * work.count
            for b in self._blocks:
                local.step(b, self._gradient[b], eta, 0)
        return np.subtract(self._theta, local.x, out=local.x)

    def _with_momentum(self, u: Array, samples: int) -> Entries:
        """u ← μu + g; what of it is sent is 0 from then on (Lin et al. 2018, §3.1 and 3.2)."""
        for b in self._blocks:
            self._accelerate(u[b], self._gradient[b], self._scratch, eta=-samples, mu=self._options.momentum)
        entries = self._compressor.end(u)
        u[self._device.to_device((entries.words & INDEX).astype(np.int64))] = 0
        return entries
