"""Pure update rules: arrays and scalars in, arrays out; no MPI, no files, no clock. Each file cites its equations."""

from collections.abc import Callable

Rule = Callable[..., None]

#: Maps a rule to a function that computes the same bits on the vectors' device in one pass.
Fast = Callable[[Rule], Rule]


def plain(rule: Rule) -> Rule:
    """The rule itself: `Fast` for NumPy vectors."""
    return rule
