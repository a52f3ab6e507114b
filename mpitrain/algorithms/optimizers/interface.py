"""The interface of optimizers: gradients in, increments out, as in optax. The caller keeps their state: `Descent`, a
flat vector that an optimizer updates slice by slice."""

from collections.abc import Callable
from typing import ClassVar

import msgspec
import numpy as np

from mpitrain.files import Record
from mpitrain.flat import Array, scratch_for
from mpitrain.keys import NotNegative

#: An update rule: arrays and scalars in, arrays changed in place; no MPI, no files, no clock.
Rule = Callable[..., None]

#: Maps a rule to a function that computes the same bits on the vectors' device in one pass.
Fast = Callable[[Rule], Rule]

Buffers = dict[str, Array]


def plain(rule: Rule) -> Rule:
    """The rule itself: `Fast` for NumPy vectors."""
    return rule


class Optimizer:
    """A local step on slices of flat vectors, elementwise and without state.

    `x`, `g`, `scratch` and the `buffers` are slices of one length; `scratch` is overwritten. `t` is the number of steps
    that were taken with these buffers. The algorithm applies the increment u: x + u; x − d + u; x + u and v + u.
    """

    #: Whether the gradient is taken at another point than x.
    looks_ahead = False

    def buffers(self, x: Array) -> Buffers:
        """The initial values of the vectors that the optimizer needs in addition to `x`, by name."""
        return {}

    def at(self, x: Array, buffers: Buffers, out: Array) -> None:
        """Write the point where the next gradient is taken. Called only if `looks_ahead`."""
        raise NotImplementedError

    def increment(self, x: Array, g: Array, buffers: Buffers, scratch: Array, *, lr: float, t: int) -> Array:
        """Update the buffers; return u, which is in `scratch` or in a buffer."""
        raise NotImplementedError

    def step(self, x: Array, g: Array, buffers: Buffers, scratch: Array, *, lr: float, t: int) -> None:
        """x ← x + u. An optimizer may compute the same bits in one pass."""
        np.add(x, self.increment(x, g, buffers, scratch, lr=lr, t=t), out=x)


class OptimizerOptions(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Base class of the tables of options. The tag is the value of `algorithm.optimizer.name`."""

    #: Defaults of [training], which suit the optimizer on the embedded digits.
    training: ClassVar[Record] = {}

    def make(self, fast: Fast) -> Optimizer:
        """An optimizer with these options."""
        raise NotImplementedError


class Decaying(OptimizerOptions, frozen=True):
    """Options with a decoupled `weight_decay` λ: a step by −ηλx beside the gradient's."""

    weight_decay: NotNegative = 0.0

    def __post_init__(self) -> None:
        if 0 < self.weight_decay < 1e-9:
            raise ValueError("weight_decay: expected 0, or 1e-9 and more")


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
