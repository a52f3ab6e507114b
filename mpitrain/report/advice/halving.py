"""Successive halving: how many candidates train on which share of the time, and which of them go on.

Jamieson & Talwalkar 2016; in rungs as in Hyperband (Li et al. 2018), each of which trains its candidates anew.
"""

from collections.abc import Mapping, Sequence
from math import inf
from typing import NamedTuple, TypeVar

import numpy as np

from mpitrain.files import Record
from mpitrain.report.comparison.table import time_to

T = TypeVar("T")
ETA = 3  # one in ETA candidates of a rung goes on to the next one, where it trains ETA times as long
Curve = Sequence[Record]  #: evaluations with their "seconds", "samples" and "merit" (less is better)


class Rung(NamedTuple):
    """A number of `candidates`, each of which trains for a `share` of the time of the last rung."""

    candidates: int
    share: float


def rungs(candidates: int, finalists: int) -> list[Rung]:
    """The rungs that leave at most `finalists` for the last one, which trains for the whole time: of 27 and 3,
    27 for a ninth of it, 9 for a third, 3 for all."""
    numbers = [candidates]
    while numbers[-1] > finalists:
        numbers.append(max(numbers[-1] // ETA, 1))
    return [Rung(number, ETA ** (at + 1.0 - len(numbers))) for at, number in enumerate(numbers)]


def column(curve: Curve, key: str) -> list[float]:
    """The values of a key, in the order of the curve."""
    return [float(str(each[key])) for each in curve]


def least(curve: Curve) -> float:
    """The least figure of merit of a curve."""
    return min(column(curve, "merit"), default=inf)


def at_time(curve: Curve, seconds: float) -> float:
    """The figure of merit at a time, linearly between two evaluations; before the first one, infinity."""
    if not curve:
        return inf
    return float(np.interp(seconds, column(curve, "seconds"), column(curve, "merit"), left=inf))


def ranked(curves: Mapping[T, Curve], target: float | None, seconds: float) -> list[T]:
    """The keys, best first. Without a target: by the figure of merit at `seconds`. Otherwise by the time to the target
    or, if fewer than half reach it, to the figure that half of them reach; then by the least figure."""
    if target is None:
        return sorted(curves, key=lambda key: at_time(curves[key], seconds))
    reached = sorted(map(least, curves.values()))
    level = max(target, reached[(len(reached) - 1) // 2]) if reached else target
    times = {key: time_to(curve, "merit", level) for key, curve in curves.items()}
    return sorted(curves, key=lambda key: (inf if (when := times[key]) is None else when, least(curves[key])))
