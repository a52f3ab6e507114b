"""When checkpoints are begun, and what is told of them."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mpitrain.checkpoint.writer import Saver
from mpitrain.files import Record
from mpitrain.flat import Array
from mpitrain.monitoring.cadence import Cadence
from mpitrain.monitoring.counters import Counters
from mpitrain.monitoring.journal import FolderJournal
from mpitrain.mpi.witness import Witness
from mpitrain.stopwatch import Activity, Stopwatch

CHECKPOINT = Activity("a checkpoint")


@dataclass(eq=False)
class Checkpoints:
    """The checkpoints of a run. `saver` gives who writes them, or None where there are none."""

    saver: Callable[[], Saver | None]
    journal: FolderJournal
    cadence: Cadence
    counters: Counters
    stopwatch: Stopwatch
    witness: Witness
    resume: Callable[[Path], str]  # the command that continues the run in a folder

    def __post_init__(self) -> None:
        self.said_how_to_resume = False
        self._writing = defaultdict[str, list[Record]](list)  # records of the checkpoints being written, by name
        self._measured = True  # whether it is known what the last checkpoint has cost
        self._lacking = set[str]()  # other files that could not be written, and of which the user was warned

    def due(self, coming: int = 0) -> bool:
        """Whether one is due after `coming` more samples, and can be written."""
        saver = self.saver()
        if saver is None or self.journal.gone:
            return False
        happened, free = self.witness.happened, lambda: not saver.busy
        if not self._measured and happened(free):
            self._measured = True
            self.cadence.written()
        self.tell()
        if not (self.cadence.checkpoint_due(self.counters.trained_all + coming) and happened(free)):
            return False
        return self.journal.look_for_folder()

    def begin(self, save: Callable[[], None], since: float | None = None) -> None:
        """Call `save`, which begins a checkpoint; ranks have waited for it since then, by default since now."""
        began, state, saver = self.cadence.clock(), self.counters.counted(), self.saver()
        state.seconds, before = self.cadence.seconds, saver.begun if saver is not None else 0
        with self.stopwatch.on("rest", CHECKPOINT):
            save()
        self.cadence.saved(state.trained, began if since is None else since)
        if saver is None:
            return
        if saver.begun > before:  # peers only ask for a meeting, at which it is begun
            place = {"samples": state.trained, "step": state.index, "seconds": self.cadence.seconds}
            self._writing[f"{state.trained:012d}"] += [{**place, "held_seconds": self.cadence.clock() - began}]
            self._measured = False
        self.tell()

    def tell(self) -> None:
        """Record the checkpoints that have been written, and warn of those that could not be."""
        saver = self.saver()
        for path, fault in saver.outcomes() if saver is not None else ():
            places = self._writing[path.name]
            place = places.pop(0) if places else {}
            if not fault:
                self.journal.write("checkpoint", **place, name=path.name)
                self._say_how_to_resume(int(path.name))
            elif path.name[0].isdigit():
                self.journal.warn(f"{fault}; the training goes on without this checkpoint")
                self.cadence.failed()
            elif path.name not in self._lacking:  # the best model: it is tried again and again
                self._lacking.add(path.name)
                self.journal.warn(f"{fault}; the training goes on without it")

    def offer_best(self, merit: float, parameters: Array, samples: int, name: str, of: str = "") -> None:
        """Keep the parameters if the figure of merit of this name is the best one so far on the data `of`."""
        saver = self.saver()
        if saver is not None and self.journal.look_for_folder():
            saver.offer_best(merit, parameters, samples, name, of)

    def _say_how_to_resume(self, samples: int) -> None:
        """Say it once, at the first checkpoint: when a rank is killed, the launcher ends all others before they can."""
        if not self.said_how_to_resume:
            self.said_how_to_resume = True
            first = f"first checkpoint, at epoch {samples / self.journal.samples:.2f}"
            resume = self.resume(self.journal.folder)
            self.journal.progress.line(f"{first}; if the run is cut off: {resume}")
