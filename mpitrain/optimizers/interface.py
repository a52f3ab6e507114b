"""What every optimizer offers: gradients in, increments out, as in optax. Its state belongs to whoever calls it."""

import numpy as np

from mpitrain.flat import Array

Buffers = dict[str, Array]


class Optimizer:
    """A local step on slices of flat vectors, elementwise and without any state of its own.

    `x`, `g`, `scratch` and the `buffers` are slices of one length; `scratch` is overwritten. `t` counts the steps that
    these buffers have seen. The algorithm decides what the increment u is added to: x + u; x − d + u; x + u and v + u.
    """

    #: Whether the gradient is to be taken somewhere else than at x.
    looks_ahead = False

    def buffers(self, x: Array) -> Buffers:
        """What is kept beside `x`, by name, as it is before the first step."""
        return {}

    def at(self, x: Array, buffers: Buffers, out: Array) -> None:
        """Write the point where the next gradient is taken. Called only for an optimizer that looks ahead."""
        raise NotImplementedError

    def increment(self, x: Array, g: Array, buffers: Buffers, scratch: Array, *, lr: float, t: int) -> Array:
        """u, in `scratch` or in a buffer, with the buffers brought up to date."""
        raise NotImplementedError

    def step(self, x: Array, g: Array, buffers: Buffers, scratch: Array, *, lr: float, t: int) -> None:
        """x ← x + u. An optimizer may do it in one pass, to the same bits."""
        np.add(x, self.increment(x, g, buffers, scratch, lr=lr, t=t), out=x)
