"""Averages of θ over time as functions of the device (mpitrain/rules/averaging.py)."""

from mpitrain.algorithms.table import Average
from mpitrain.flat import Array
from mpitrain.rules import Fast, averaging


def running(fast: Fast) -> Average:
    """The mean of all iterates."""
    rule = fast(averaging.running_average)

    def take(z: Array, x: Array, scratch: Array, t: int) -> None:
        rule(z, x, scratch, t=t)

    return take


def moving(fast: Fast, rate: float) -> Average:
    """An average with a constant moving rate."""
    rule = fast(averaging.moving_average)

    def take(z: Array, x: Array, scratch: Array, t: int) -> None:
        rule(z, x, scratch, rate=rate)

    return take
