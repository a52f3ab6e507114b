"""Errors a user can mend, and what others' say."""

from collections.abc import Sequence


class BadInput(ValueError):
    """Input that cannot be used: one line that names the file or the key.

    The program prints it and exits with status 2. `agreed` when all ranks know of it and one has printed it.
    """

    agreed = False

    def __init__(self, line: str) -> None:
        """`line` stays one line whatever names it quotes: control characters are shown as Python writes them."""
        super().__init__("".join(c if c.isprintable() else repr(c)[1:-1] for c in line))


class TrainingFailed(RuntimeError):
    """A training that cannot go on, such as one whose gradients are no longer finite: one line, exit status 1."""


class Overdue(RuntimeError):
    """What was waited for did not come within the deadline. `silent`: the ranks that gave no sign of life meanwhile."""

    def __init__(self, line: str, silent: Sequence[int] = ()) -> None:
        super().__init__(line)
        self.silent = tuple(silent)


def named(ranks: Sequence[int]) -> str:
    """ "rank 3" or "ranks 1, 2"."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


class WireError(RuntimeError):
    """A message that is not what its sender should have sent; the line names the sender."""


def first_line(error: Exception) -> str:
    """The first line of what it says, or else what it is."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def printable(text: str, keep: str = "") -> str:
    """The text with whatever a terminal or a page would not show as a letter written out, such as \\x1b; but `keep`."""
    return "".join(
        letter if letter.isprintable() or letter in keep else letter.encode("unicode_escape").decode()
        for letter in text
    )


def missing(error: Exception, module: str) -> bool:
    """Whether it is that this module is not installed, rather than that it fails."""
    return isinstance(error, ModuleNotFoundError) and error.name == module
