"""Standard output: live lines on a terminal, plain lines elsewhere, nothing if nobody reads it."""

import os
import sys
from contextlib import suppress
from pathlib import Path

from rich.console import Console

NARROWEST = 20  # columns in which a table can be read
LAUNCHERS = ("mpirun", "mpiexec", "mpiexec.hydra", "hydra_pmi_proxy", "orterun", "prterun", "prted", "prte")


def open_plain() -> Console:
    """Standard output for tables and lines of commands that draw no live lines. No text in it becomes an emoji."""
    return Console(highlight=False, emoji=False, width=_usable_width())


class Output(Console):
    """Standard output that becomes silent when its reader is gone or its disk is full, so that a training continues.
    Needed where a user's program calls `train`: commands have `__main__._Outlet` for all that they print."""

    def print(self, *objects, **options) -> None:  # type: ignore[no-untyped-def]
        try:
            super().print(*objects, **options)
        except OSError:
            self.on_broken_pipe()
        except ValueError:
            if not self.file.closed:
                raise
            self.quiet = True  # the user's code has closed it

    def on_broken_pipe(self) -> None:
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)  # otherwise the interpreter reports an error at its exit
        os.close(nowhere)


def open_console(live: bool = True, quiet: bool = False) -> Console:
    """Standard output. `is_terminal` is true if `live` lines are wanted and possible. `quiet`: print nothing."""
    terminal = _terminal() if live else None
    width = _usable_width() if terminal is None else _width(terminal)
    return Output(
        file=sys.stdout, highlight=False, emoji=False, force_terminal=terminal is not None, width=width, quiet=quiet
    )


def _terminal() -> str | None:
    """The path of the terminal that shows standard output: that of mpirun, if it started this process, or else its own.

    None if no terminal does. A launcher reads the output of its ranks through pipes or pseudo-terminals and forwards it
    byte by byte: live lines work if the launcher's own output is a terminal. Open MPI's are pseudo-terminals also where
    a script or a container stands between it and this process, so that the launcher is not seen.
    """
    out = None
    try:
        process = os.getppid()
        while Path(f"/proc/{process}/comm").read_text().strip() in LAUNCHERS:
            out = os.readlink(f"/proc/{process}/fd/1")
            process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError):
        return None
    if out is not None:
        return out if out.startswith("/dev/pts/") else None
    own = sys.stdout.isatty() and "OMPI_COMM_WORLD_RANK" not in os.environ
    return os.ttyname(sys.stdout.fileno()) if own else None


def _usable_width() -> int | None:
    """80 columns where COLUMNS is so small, such as 0 in some containers, that rich would show nothing; otherwise None,
    which lets rich choose."""
    told = os.environ.get("COLUMNS", "")
    return 80 if told.isdecimal() and int(told) < NARROWEST else None


def _width(terminal: str) -> int:
    """The columns of a terminal; 100 where they cannot be asked for, or were never set."""
    columns = 0
    with suppress(OSError):
        handle = os.open(terminal, os.O_RDONLY | os.O_NOCTTY)
        try:
            columns = os.get_terminal_size(handle).columns
        finally:
            os.close(handle)
    return columns or 100
