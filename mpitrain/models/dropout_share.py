"""Dropout of units that are divided over parts.

Each part draws for the whole minibatch and all units, in the order in which the undivided network would draw on one
rank, and keeps its own columns. A run with dropout therefore depends neither on the number of parts nor on the order of
work: it drops the same units as one rank on the same minibatch. No communication is needed, since the part that owns a
unit sends its activation after dropout. A draw is cheap compared with the unit's product.
"""

from collections.abc import Sequence

import numpy as np

from mpitrain.flat import Array, blocks
from mpitrain.models.split_stage import SplitStage
from mpitrain.models.workspace import Workspace
from mpitrain.schedules.hybrid import ExampleRange

ROWS = 64  # examples drawn at a time


class DropoutShare:
    """The dropout factors of this part's units: 0, or that of the units that are kept."""

    def __init__(self, split: SplitStage, workspace: Workspace) -> None:
        assert split.stage.dropout is not None
        self.rate, self.kept = split.stage.dropout.rate, split.stage.dropout.kept
        self.units, self.own = split.units, split.own
        self._name, self._workspace = f"{split.stage.dropout.name}.share", workspace

    def draw(self, rng: np.random.Generator, count: int, dtype: np.dtype) -> None:
        """Draw for a minibatch of `count` examples."""
        self._keep = keep = self._workspace.array(self._name, (self.own.stop - self.own.start, count), dtype)
        if not isinstance(keep, np.ndarray):
            self._draw_there(rng, count)
            return
        draws = np.empty((min(ROWS, count), self.units), np.float32)
        for block in blocks(count, ROWS):
            rows = rng.random(dtype=np.float32, out=draws[: block.stop - block.start])
            np.greater_equal(rows[:, self.own].T, self.rate, out=keep[:, block])
        np.multiply(keep, self.kept, out=keep)

    def _draw_there(self, rng: np.random.Generator, count: int) -> None:
        """Like `draw`, on a device, whose kernel draws for all units of all examples."""
        shape, dtype = (count, self.units), self._keep.dtype
        factors, rest = (self._workspace.array(f"{self._name}.{part}", shape, dtype) for part in ("all", "rest"))
        self._workspace.ops.dropout(rest, rest, factors, rng, self.rate, self.kept)
        np.copyto(self._keep, factors[:, self.own].T)

    def of(self, pieces: Sequence[ExampleRange]) -> Array:
        """The factors [own units, n] for the examples of the pieces."""
        first, last = pieces[0], pieces[-1]
        count = sum(piece.examples for piece in pieces)
        if last.stop - first.start == count:
            return self._keep[:, first.start : last.stop]
        out, at = self._workspace.array(f"{self._name}.round", (len(self._keep), count), self._keep.dtype), 0
        for piece in pieces:
            np.copyto(out[:, at : at + piece.examples], self._keep[:, piece.start : piece.stop])
            at += piece.examples
        return out
