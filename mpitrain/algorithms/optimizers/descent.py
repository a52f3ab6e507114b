"""A flat vector and the optimizer that updates it, slice by slice."""

import numpy as np

from mpitrain.algorithms.optimizers.interface import Buffers, Optimizer
from mpitrain.flat import Array, scratch_for


class Descent:
    """`x`, the optimizer's `buffers`, and `at`, where the next gradient is taken (x itself unless it looks ahead).

    Slices are at most as long as a block (`flat.block_of`).
    """

    def __init__(self, optimizer: Optimizer, x: Array, buffers: Buffers | None = None) -> None:
        self.optimizer, self.x = optimizer, x
        self.buffers = optimizer.buffers(x) if buffers is None else buffers
        self.at = np.empty_like(x) if optimizer.looks_ahead else x
        self._scratch = scratch_for(x)
        self.look()

    def step(self, part: slice, g: Array, lr: float, t: int) -> None:
        """x ← x + u on a slice, whose gradient is `g`."""
        x, buffers = self.x[part], self._of(part)
        self.optimizer.step(x, g, buffers, self._scratch[: len(g)], lr=lr, t=t)
        if self.optimizer.looks_ahead:
            self.optimizer.at(x, buffers, self.at[part])

    def increment(self, part: slice, g: Array, lr: float, t: int) -> Array:
        """u of a slice, valid until the next call, for an algorithm that applies it itself and then calls `look`."""
        return self.optimizer.increment(self.x[part], g, self._of(part), self._scratch[: len(g)], lr=lr, t=t)

    def look(self, part: slice | None = None) -> None:
        """Update `at` after other code has changed x or the buffers."""
        part = slice(0, self.x.size) if part is None else part
        if self.optimizer.looks_ahead:
            self.optimizer.at(self.x[part], self._of(part), self.at[part])

    def restart(self, part: slice, x: Array) -> None:
        """Set a slice to `x`, and the buffers there to their initial values."""
        np.copyto(self.x[part], x)
        for name, buffer in self.optimizer.buffers(x).items():
            np.copyto(self.buffers[name][part], buffer)
        self.look(part)

    def _of(self, part: slice) -> Buffers:
        return {name: buffer[part] for name, buffer in self.buffers.items()}
