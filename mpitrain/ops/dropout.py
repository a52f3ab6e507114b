"""Dropout whose draws depend neither on the run's dtype nor on how ranks share a minibatch."""

import numpy as np

from mpitrain.flat import Array, blocks

ROWS = 64  # examples drawn at a time: the draws stay in cache


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
