"""Updates in a trace: a device whose rules tell the stopwatch when they are applied."""

import copy
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from mpitrain.device import Cpu
from mpitrain.optimizers import Rule
from mpitrain.stopwatch import Activity, Stopwatch

P = ParamSpec("P")
T = TypeVar("T")

#: Rules are applied block by block; what a loop does between two of them takes less.
UPDATE, DELTA = Activity("an update", pause=50e-6), Activity("a sparse delta of the residual", pause=50e-6)


def telling(device: Cpu, stopwatch: Stopwatch) -> Cpu:
    """The same device. A GPU says nothing: its updates are only begun when a rule returns."""
    if device.name != "cpu":
        return device
    plain, told = device.fast, copy.copy(device)

    def fast(rule: Rule) -> Rule:
        return _told(plain(rule), stopwatch, UPDATE)

    told.fast = fast  # type: ignore[method-assign]
    told.apply_words = _told(device.apply_words, stopwatch, UPDATE)
    told.emit = _told(device.emit, stopwatch, DELTA)
    return told


def _told(does: Callable[P, T], stopwatch: Stopwatch, about: Activity) -> Callable[P, T]:
    @wraps(does)
    def timed(*arguments: P.args, **options: P.kwargs) -> T:
        if stopwatch.listener is None:
            return does(*arguments, **options)
        with stopwatch.about(about):
            return does(*arguments, **options)

    return timed
