"""Errors that a user can fix, and one-line messages about the errors of libraries and of the user's code."""

import difflib
import errno
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

#: What other programs call a key, and its name here.
ALIASES = {
    **dict.fromkeys(("lr", "learning_rate"), "training.learning_rate"),
    **dict.fromkeys(("batch_size", "minibatch"), "training.minibatch"),
    **dict.fromkeys(("epochs", "num_epochs", "max_epochs"), "training.epochs"),
    **dict.fromkeys(("schedule", "scheduler", "lr_scheduler"), "training.schedule"),
    **dict.fromkeys(("warmup", "warmup_epochs"), "training.warmup"),
    **dict.fromkeys(("adam", "adamw", "optim", "optimizer"), "algorithm.optimizer.name"),
    **dict.fromkeys(("device", "gpu", "gpus"), "run.device"),
    "seed": "training.seed",
}

#: What the operating system says of files that cannot be reached, whether they exist or not.
UNREACHABLE = (errno.EACCES, errno.EPERM, errno.EIO, errno.ENOTCONN, errno.ESTALE)


class BadInput(ValueError):
    """Input that cannot be used: one line that names the file or the key.

    The program prints it and exits with status 2. `agreed`: all ranks raise it; `spoken_here`: this rank prints it.
    """

    agreed = False
    spoken_here = True

    def __init__(self, line: str) -> None:
        """`line` remains one line whatever names it quotes: control characters are escaped."""
        super().__init__(printable(line))

    @classmethod
    def known(cls, line: str, spoken_here: bool) -> "BadInput":
        """An error that all ranks raise, and that ranks with `spoken_here` print."""
        error = cls(line)
        error.agreed, error.spoken_here = True, spoken_here
        return error


class TrainingFailed(RuntimeError):
    """A training that cannot continue, for example because its gradients are not finite: one line, exit status 1."""


class Overdue(RuntimeError):
    """A wait exceeded its deadline. `silent`: the ranks that sent no heartbeat during the wait."""

    def __init__(self, line: str, silent: Sequence[int] = ()) -> None:
        super().__init__(line)
        self.silent = tuple(silent)


class RankLost(RuntimeError):
    """A rank has died or hangs: operations of all ranks no longer work, but the other ranks may go on without it.

    `silent`: the ranks that are known to hang; `held`: what this rank has of the training, None if it had not begun.
    """

    def __init__(self, silent: Sequence[int] = (), held: Any = None) -> None:
        super().__init__("a rank was lost")
        self.silent, self.held = tuple(silent), held


def named(ranks: Sequence[int]) -> str:
    """Format ranks as "rank 3" or "ranks 1, 2"."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def some(count: int, noun: str) -> str:
    """Format a number of things, as "1 rank" or "2 ranks"."""
    return f"{count} {noun}{'s' if count != 1 else ''}"


class WireError(RuntimeError):
    """A message that violates the protocol; the line names its sender."""


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type if it has none, or one that cannot be had."""
    lines: list[str] = []
    with suppress(Exception):  # of a user's class
        lines = str(error).strip().splitlines()
    return (lines or [type(error).__name__])[0]


def printable(text: str, keep: str = "") -> str:
    """The text with unprintable characters escaped, such as \\x1b, except those in `keep`."""
    escaped = (each if each.isprintable() or each in keep else each.encode("unicode_escape").decode() for each in text)
    return "".join(escaped)


def say(what: object) -> None:
    """Tell the user something in one line on standard error."""
    print(f"mpitrain: {printable(str(what))}", file=sys.stderr, flush=True)


def missing(error: Exception, module: str) -> bool:
    """Whether the error says that this module is not installed, rather than that it fails to load."""
    return isinstance(error, ModuleNotFoundError) and error.name == module


def reason(error: BaseException) -> str:
    """The message of the operating system, of libsndfile or of the error in one line, or its type if it has none."""
    said = getattr(error, "strerror", None) or getattr(error, "error_string", None) or str(error)
    return " ".join(said.split()).rstrip(" .") or type(error).__name__


@contextmanager
def naming(what: object, *kinds: type[Exception]) -> Iterator[None]:
    """Turn errors of these kinds, by default OSError, into BadInput: `what`, such as a path, and the reason."""
    caught = kinds or (OSError,)
    try:
        yield
    except BadInput:
        raise
    except caught as error:
        raise BadInput(f"{what}: {reason(error)}") from error


@contextmanager
def unreachable() -> Iterator[None]:
    """Turn the error of a file that nothing else names, as in a folder that may not be searched or on a file system
    whose server is gone, into BadInput."""
    try:
        yield
    except OSError as error:
        if error.filename is None or error.errno not in UNREACHABLE:
            raise
        raise BadInput(f"{error.filename}: {reason(error)}") from error


@contextmanager
def blaming(name: object, what: str) -> Iterator[None]:
    """Turn an exception of the user's code, sys.exit included, into BadInput: `name`, `what` failed, and the innermost
    line of that code."""
    try:
        yield
    except BadInput:
        raise
    except (Exception, SystemExit) as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if not _is_library(f.filename)]
        where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
        raise BadInput(f"{name}: {what}: {type(error).__name__}: {first_line(error)}{where}") from error


def _is_library(path: str) -> bool:
    folders = Path(__file__).parent, sysconfig.get_path("stdlib")
    return "site-packages" in path or path.startswith(("<", *(f"{folder}/" for folder in folders)))


def library(module: str, need: str, extra: str) -> ModuleType:
    """Import a module that an extra installs. Raises BadInput with `need`, such as "prepare wav needs soundfile", and,
    if the module is installed, the error of its import."""
    try:
        return installed(module)
    except Exception as error:  # not only ImportError: a package without its C library, or for another NumPy
        why = "" if missing(error, module.partition(".")[0]) else f" (what is installed fails: {first_line(error)})"
        raise BadInput(f"{need}: pip install mpitrain[{extra}]{why}") from error


def installed(module: str) -> ModuleType:
    """Import a module of an installed package. Raises ModuleNotFoundError also where a mere folder has its name, such
    as one of the user's in the working directory, or what an uninstalled package has left."""
    name = module.partition(".")[0]
    if import_module(name).__file__ is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return import_module(module)


def nearest(word: str, known: list[str], prefix: str = "", cutoff: float = 0.5) -> str:
    """The end of a message that says that `word` is unknown: the nearest known word after `prefix`, or all of them."""
    close = difflib.get_close_matches(word.lower(), known, n=1, cutoff=cutoff)
    return f"; the nearest known is {prefix}{close[0]}" if close else f"; known: {', '.join(known)}"
