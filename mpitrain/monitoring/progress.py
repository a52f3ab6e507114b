"""What a user sees of a training: a live line on a terminal, plain lines elsewhere, and the closing table."""

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from mpitrain.monitoring.evaluation import Results
from mpitrain.monitoring.records import merits, rate_text
from mpitrain.stopwatch import PLAIN_EVERY


class Progress:
    """`how`: "auto" (live on a terminal, otherwise plain), "plain" or "none"; `total`: number of samples. The library
    for printing is loaded only on a rank that prints."""

    def __init__(self, how: str, total: int) -> None:
        self._total, self._quiet, self._said = total, how == "none", time.monotonic()
        self._bar: Any = None
        if self._quiet:
            return
        from mpitrain.console import open_console

        self.console = open_console(live=how == "auto")
        if self.console.is_terminal:
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as Bar

            columns = (BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TextColumn("{task.description}"))
            self._bar = Bar(*columns, console=self.console, transient=True)
            self._task = self._bar.add_task("starting", total=total)
            self._bar.start()

    def line(self, text: str) -> None:
        """Print a line, above the live one."""
        self._said = time.monotonic()
        if not self._quiet:
            self.console.print(text, soft_wrap=True, markup=False)

    def update(self, trained: int, rate: float, loss: float | None, results: Results) -> None:
        """Show the state of the training."""
        said = f"{rate_text(rate)} samples/s  loss {loss_text(loss, 3)}"
        said += next((f"  {name} {value}" for name, value in merits(results) if name.startswith("test")), "")
        if rate:
            said += f"  {timedelta(seconds=round((self._total - trained) / rate))} left"
        if self._bar is not None:
            self._bar.update(self._task, completed=trained, description=said)
        elif time.monotonic() - self._said > PLAIN_EVERY:
            self.line(f"{trained / max(self._total, 1):6.1%}  {said}")

    def evaluated(self, epoch: float, seconds: float, loss: float | None, results: Results) -> None:
        """Print the results of an evaluation."""
        wrong = "  ".join(f"{name} {value}" for name, value in merits(results))
        self.line(f"epoch {epoch:6.2f}  {seconds_text(seconds):>7} s  train loss {loss_text(loss)}  {wrong}")

    def close(self) -> None:
        """End the live line."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def table(self, rows: list[tuple[str, str]], folder: str, lines: Sequence[str] = ()) -> None:
        """Print the closing table, these lines and the run folder."""
        if self._quiet:
            return
        from rich.table import Table

        table = Table(show_header=False, box=None, pad_edge=False)
        for name, value in rows:
            table.add_row(name, value)
        self.console.print(table)
        for line in lines:
            self.line(line)
        self.console.print(folder, soft_wrap=True, markup=False)


def seconds_text(seconds: float) -> str:
    """Format a number of seconds: tenths from one on, two significant digits below, as in short simulations."""
    return f"{seconds:.1f}" if seconds >= 1 else f"{seconds:.2g}"


def loss_text(loss: float | None, digits: int = 4) -> str:
    """Format a loss; a dash for None."""
    if loss is None:
        return "–"
    return f"{loss:.{digits}f}" if abs(loss) < 1e6 else f"{loss:.2e}"
