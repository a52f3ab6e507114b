"""What a run tells while it lasts: records in its folder, wherever that is by then, and lines on the terminal."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mpitrain.checkpoint.late import Moment
from mpitrain.files import Record
from mpitrain.monitoring.progress import Progress
from mpitrain.monitoring.records import Metrics
from mpitrain.signals import Stop


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
