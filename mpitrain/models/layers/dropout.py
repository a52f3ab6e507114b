"""Dropout (Hinton et al. 2012; Srivastava et al. 2014), whose draws depend neither on the run's dtype nor on how ranks
share a minibatch or the units."""

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Literal

import numpy as np

from mpitrain.flat import Array, blocks
from mpitrain.keys import Fraction
from mpitrain.models.layer import Draws, Layer, LayerOptions, OnnxNode, Tensor, Views
from mpitrain.models.workspace import Workspace

ROWS = 64  # examples drawn at a time: the draws stay in cache

#: When dropout multiplies what it keeps.
Scaled = Literal["training", "evaluation"]


class DropoutOptions(LayerOptions, frozen=True, tag_field="kind", tag="dropout"):
    """In training, each unit is set to 0 with probability `rate`, otherwise divided by 1 − rate. With `scaled =
    "evaluation"`, the form of 2012, it is left as it is instead, and multiplied by 1 − rate in evaluation: for rates
    and initial values that were found with that form."""

    rate: Fraction = 0.5
    scaled: Scaled = "training"


class Dropout(Layer, options=DropoutOptions):
    """Sets units to 0 while training.

    If ranks share a minibatch, each rank draws for the whole minibatch and keeps its own rows, so that the result is
    that of a single rank.
    """

    kind = "dropout"

    def __init__(self, options: DropoutOptions) -> None:
        super().__init__(options)
        self.rate = options.rate
        #: The factors of the units that are kept in training, and of all units in evaluation.
        self.kept, self.evaluated = (1 / (1 - self.rate), 1.0) if options.scaled == "training" else (1.0, 1 - self.rate)

    def forward(self, views: Views, x: Array, training: bool = False, draws: Draws | None = None) -> Array:
        if self.rate == 0 or (not training and self.evaluated == 1):
            return x
        if not training:
            return np.multiply(x, self.evaluated, out=self.buffer("y", x.shape, x))
        if draws is None:
            raise ValueError("dropout needs a random stream while training")
        self._scale, y = self.buffer("scale", x.shape, x), self.buffer("y", x.shape, x)
        # Not in place: the previous activation needs its own output for the backward pass.
        self.workspace.kernel(dropout)(x, y, self._scale, draws.rng, self.rate, self.kept, draws.share)
        return y

    def backward(self, views: Views, gradients: Views, dy: Array, need_dx: bool = True) -> Array | None:
        return dy if self.rate == 0 else np.multiply(dy, self._scale, out=dy)

    def torch(self, torch: ModuleType, x: Tensor, own: Mapping[str, Tensor], training: bool) -> Tensor:
        if training:
            x = torch.nn.functional.dropout(x, self.rate)
        return x if self.evaluated == 1 else x * self.evaluated  # in training PyTorch has divided by it

    def onnx(self, views: Views) -> list[OnnxNode]:
        """Nothing, unless it is scaled in evaluation."""
        scale = {f"{self.name}.scale": np.array(self.evaluated, np.float32)}
        return [] if self.evaluated == 1 else [OnnxNode("Mul", scale)]


def dropout(
    x: Array,
    y: Array,
    scale: Array,
    rng: np.random.Generator,
    rate: float,
    kept: float,
    share: tuple[int, int] | None = None,
) -> None:
    """scale ← kept·(draw ≥ rate); y ← x·scale. All [n, …]; y may be x.

    Draws are float32, one per element of the whole minibatch; `share`: (index of the first example, size of the whole).
    """
    first, count = share or (0, len(x))
    draws = np.empty((min(ROWS, count), *x.shape[1:]), np.float32)
    for block in blocks(count, ROWS):
        rows = rng.random(dtype=np.float32, out=draws[: block.stop - block.start])
        begin, end = max(block.start, first), min(block.stop, first + len(x))
        if begin < end:
            own = scale[begin - first : end - first]
            np.greater_equal(rows[begin - block.start : end - block.start], rate, out=own)
    np.multiply(scale, kept, out=scale)
    np.multiply(x, scale, out=y)


class DropoutShare:
    """The dropout factors of one part's units `own` of `units`: 0, or that of the units that are kept.

    Each part draws for the whole minibatch and all units, in the order in which the undivided network would draw on one
    rank, and keeps its own columns. A run with dropout therefore depends neither on the number of parts nor on the
    order of work. No communication is needed, since the part that owns a unit sends its activation after dropout. A
    draw is cheap compared with the unit's product.
    """

    def __init__(self, layer: Dropout, own: slice, units: int, workspace: Workspace) -> None:
        self.rate, self.kept, self.own, self.units = layer.rate, layer.kept, own, units
        self._name, self._workspace = f"{layer.name}.share", workspace

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
        self._workspace.kernel(dropout)(rest, rest, factors, rng, self.rate, self.kept)
        np.copyto(self._keep, factors[:, self.own].T)

    def of(self, pieces: Sequence[slice]) -> Array:
        """The factors [own units, n] for the n examples of the pieces."""
        first, last = pieces[0], pieces[-1]
        count = sum(piece.stop - piece.start for piece in pieces)
        if last.stop - first.start == count:
            return self._keep[:, first.start : last.stop]
        out = self._workspace.array(f"{self._name}.round", (len(self._keep), count), self._keep.dtype)
        np.concatenate([self._keep[:, piece] for piece in pieces], axis=1, out=out)
        return out
