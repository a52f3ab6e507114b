"""Standard output: live lines where a terminal shows them, plain lines elsewhere, nothing where nobody reads it."""

import os
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

PLAIN_EVERY = 10.0  # seconds without a plain line before there is one
LAUNCHERS = ("mpirun", "mpiexec", "mpiexec.hydra", "hydra_pmi_proxy", "orterun", "prterun", "prted", "prte")


class Output(Console):
    """Standard output, which falls silent when nobody reads it any more, or its disk is full: a training goes on."""

    def print(self, *objects: Any, **options: Any) -> None:
        try:
            super().print(*objects, **options)
        except OSError:
            self.on_broken_pipe()

    def on_broken_pipe(self) -> None:
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)  # or the interpreter would complain at its end
        os.close(nowhere)


def open_console(live: bool = True, quiet: bool = False) -> Console:
    """Standard output; `is_terminal` where `live` lines are wanted and work. A `quiet` one says nothing."""
    terminal = _terminal() if live else None
    width = _size(terminal).columns if terminal is not None else None
    return Output(file=sys.stdout, highlight=False, force_terminal=terminal is not None, width=width, quiet=quiet)


def _terminal() -> str | None:
    """The terminal that standard output comes out on: that of the mpirun that started this process, else its own.

    A launcher reads its ranks' output through pipes, or pseudo-terminals of its own, and passes it on byte by byte: a
    live line works where its own output is a terminal, and nowhere else.
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
    return os.ttyname(sys.stdout.fileno()) if sys.stdout.isatty() else None


def _size(terminal: str) -> os.terminal_size:
    usual = os.terminal_size((100, 24))
    try:
        handle = os.open(terminal, os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return usual
    try:
        size = os.get_terminal_size(handle)
        return size if size.columns else usual  # a terminal nobody has sized says 0
    except OSError:
        return usual
    finally:
        os.close(handle)
