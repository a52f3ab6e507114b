"""What a run tells while it lasts: records in its folder, wherever that is by then, and lines on the terminal."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from mpitrain.checkpoint.late import Moment
from mpitrain.files import Record
from mpitrain.monitoring.evaluation import Results
from mpitrain.monitoring.records import Metrics, merits, rate_text
from mpitrain.signals import Stop
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


class Journal:
    """The journal of a rank that keeps no records and shows nothing but errors."""

    def __init__(self) -> None:
        self.progress = Progress("none", 1)

    def write(self, event: str, **fields: object) -> None:
        """Write a record, if this rank keeps records."""

    def warn(self, text: str, **numbers: object) -> None:
        """Warn the user, and record the warning."""
        self.progress.line(f"warning: {text}")
        self.write("warning", text=text, **numbers)


@dataclass(eq=False)
class FolderJournal(Journal):
    """Writes records into the run folder. `samples`: an epoch's."""

    folder: Path
    find: Callable[[], Path | None]  # where the run folder is now; None: nowhere
    metrics: Metrics
    progress: Progress
    samples: int
    stop: Stop
    exchanged: Callable[[], int | None]  # how many bytes all ranks have exchanged; None: no figure is recorded

    def __post_init__(self) -> None:
        self.gone = ""  # "moved" or "deleted": what has become of the run folder

    def write(self, event: str, **fields: object) -> None:
        self.metrics.write(event, **fields)

    def write_at(self, event: str, at: Moment, **fields: object) -> None:
        """Write a record of a moment of the training."""
        rate = {} if at.learning_rate is None else {"learning_rate": at.learning_rate}
        place = {"step": at.step, "samples": at.samples, "epoch": at.samples / self.samples, "seconds": at.seconds}
        self.write(event, **place, train_loss=at.train_loss, **rate, **fields)

    def bytes_exchanged(self) -> Record:
        """The bytes that all ranks have exchanged, as a field of a record."""
        exchanged = self.exchanged()
        return {} if exchanged is None else {"bytes_exchanged": exchanged}

    def look_for_folder(self) -> bool:
        """Whether the run folder is in its place; its file of records is restored. The training ends if the folder was
        moved or deleted."""
        if not self.gone:
            found = self.find()
            if found == self.folder:
                self.metrics.restore()
            else:
                self.gone = "deleted" if found is None else "moved"
                where = "" if found is None else f" to {found}"
                self.warn(f"{self.folder} was {self.gone}{where}: the training ends with a checkpoint")
                self.stop.ask()
        return not self.gone

    def move(self, folder: Path) -> None:
        """Write into this folder from now on: the run folder at its present place, or another folder."""
        self.folder, self.find = folder, lambda: folder
        self.metrics.move(folder / "metrics.jsonl")
