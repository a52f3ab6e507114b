"""Pure update rules: arrays and scalars in, arrays out; no MPI, no files, no clock. Each file cites its equations."""

from collections.abc import Callable
from typing import Any

#: Maps a rule to a function that gives the same bits on the vectors' device: on a GPU, one kernel.
Fast = Callable[[Callable[..., Any]], Callable[..., Any]]


def plain(rule: Callable[..., Any]) -> Callable[..., Any]:
    """The rule itself: `Fast` for NumPy vectors."""
    return rule
