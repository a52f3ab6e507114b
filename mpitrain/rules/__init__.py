"""Pure update rules: arrays and scalars in, arrays out; no MPI, no files, no clock. Each file cites its equations."""

from collections.abc import Callable
from typing import Any

#: Gives for a rule what does the same, to the bit, where the vectors lie: on a GPU, one kernel.
Fast = Callable[[Callable[..., Any]], Callable[..., Any]]


def plain(rule: Callable[..., Any]) -> Callable[..., Any]:
    """The rule itself: `Fast` for vectors of NumPy."""
    return rule
