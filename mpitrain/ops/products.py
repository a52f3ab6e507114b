"""Matrix products and sums, under names that the functions of other devices share."""

import numpy as np

from mpitrain.flat import Array


def matmul(a: Array, b: Array, out: Array) -> None:
    """out ← a·b; each may be a transposed view."""
    np.matmul(a, b, out=out)


def add_bias(y: Array, bias: Array) -> None:
    """y [..., units] ← y + bias [units]."""
    np.add(y, bias, out=y)


def column_sums(x: Array, out: Array) -> None:
    """out [columns] ← the sums of x [rows, columns]."""
    np.sum(x, axis=0, out=out)
