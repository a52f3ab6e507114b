"""What a user sees while training: a live line on a terminal, plain lines elsewhere, and the closing table."""

import os
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from mpitrain.metrics import errors

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


class Progress:
    """`how` is "auto" (live on a terminal, else plain), "plain" or "none"; `total` counts samples."""

    def __init__(self, how: str, total: int) -> None:
        self._total, self._quiet, self._said = total, how == "none", time.monotonic()
        self.console = open_console(live=how == "auto")
        self._bar: Bar | None = None
        if self.console.is_terminal:
            columns = (BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TextColumn("{task.description}"))
            self._bar = Bar(*columns, TimeRemainingColumn(), console=self.console, transient=True)
            self._task = self._bar.add_task("starting", total=total)
            self._bar.start()

    def line(self, text: str) -> None:
        """A line of its own, above the live one."""
        self._said = time.monotonic()
        if not self._quiet:
            self.console.print(text, soft_wrap=True, markup=False)

    def update(self, trained: int, rate: float, loss: float | None, error: float | None) -> None:
        """Where the training stands."""
        said = f"{rate:,.0f} samples/s  loss {loss_text(loss, 3)}"
        said += "" if error is None else f"  test error {error:.2%}"
        if self._bar is not None:
            self._bar.update(self._task, completed=trained, description=said)
        elif time.monotonic() - self._said > PLAIN_EVERY:
            self.line(f"{trained / max(self._total, 1):6.1%}  {said}")

    def evaluated(self, epoch: float, seconds: float, loss: float | None, results: dict[str, float]) -> None:
        """An evaluation's result."""
        wrong = "  ".join(f"{part} error {share:.2%}" for part, share in errors(results).items())
        self.line(f"epoch {epoch:6.2f}  {seconds:7.1f} s  train loss {loss_text(loss)}  {wrong}")

    def close(self) -> None:
        """End the live line."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def table(self, rows: list[tuple[str, Any]], folder: str) -> None:
        """The closing table and where the run lies."""
        if self._quiet:
            return
        table = Table(show_header=False, box=None, pad_edge=False)
        for name, value in rows:
            table.add_row(name, str(value))
        self.console.print(table)
        self.console.print(folder, soft_wrap=True, markup=False)


def loss_text(loss: float | None, digits: int = 4) -> str:
    """A loss for a reader; a dash where nothing was trained."""
    return "–" if loss is None else f"{loss:.{digits}f}" if abs(loss) < 1e6 else f"{loss:.2e}"


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
