"""Evaluations, checkpoints and records, which the master takes care of when they are due."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mpitrain.checkpoint import late
from mpitrain.checkpoint.late import Moment
from mpitrain.checkpoint.writer import Saver
from mpitrain.files import Record
from mpitrain.flat import Array
from mpitrain.monitoring.cadence import Cadence
from mpitrain.monitoring.counters import Counters
from mpitrain.monitoring.evaluation import Results
from mpitrain.monitoring.evaluations import Evaluations, Subject
from mpitrain.monitoring.journal import FolderJournal
from mpitrain.monitoring.restarts import last_evaluated
from mpitrain.mpi.witness import Witness
from mpitrain.stopwatch import Activity, Stopwatch

CHECKPOINT = Activity("a checkpoint")


class Monitor:
    """The monitor of a rank that keeps no records: nothing is ever due."""

    def start(self) -> None:
        """Begin the training."""

    def turn(self, subject: Subject, parameters: bool = True) -> bool:
        """Do what is due; returns whether an evaluation is in progress. Nothing is evaluated or saved without
        `parameters`, which this rank may not have."""
        return False

    def save_due(self, coming: int = 0) -> bool:
        """Whether a checkpoint is due after `coming` more samples, and can be written."""
        return False

    def wants_parameters(self, coming: int) -> bool:
        """Whether an evaluation or a checkpoint is due after `coming` more samples."""
        return False

    def checkpoint(self, save: Callable[[], None], since: float | None = None) -> None:
        """Call `save`, which starts a checkpoint; ranks have waited for it since then, by default since now."""
        save()


@dataclass(eq=False)
class MasterMonitor(Monitor):
    """Evaluates, saves, and records the counts. `saver` gives who writes checkpoints, or None where there are none."""

    cadence: Cadence
    counters: Counters
    journal: FolderJournal
    saver: Callable[[], Saver | None]
    stopwatch: Stopwatch
    witness: Witness
    resume: Callable[[Path], str]  # the command that continues the run in a folder
    now: Callable[[float | None], Moment]  # this moment, with a training loss
    evaluations: Evaluations | None = None

    def __post_init__(self) -> None:
        self._said_how_to_resume = False
        self._writing = defaultdict[str, list[Record]](list)  # records of the checkpoints being written, by name
        self._measured = True  # whether it is known what the last checkpoint has cost
        self._lacking = set[str]()  # other files that could not be written, and of which the user was warned

    def start(self) -> None:
        """Begin the training; a resumed one begins with the evaluation that was cut off, while the other ranks wait."""
        trained, folder = self.counters.trained_before, self.journal.folder
        late.forget(folder, trained)
        copies = [late.samples(copy) for copy in late.waiting(folder)]
        evaluated = max(last_evaluated(folder / "metrics.jsonl", trained), *copies, 0)
        self.cadence.start(trained, self.counters.state.seconds, evaluated)
        if self.evaluations is not None:
            self.evaluations.start()

    def turn(self, subject: Subject, parameters: bool = True) -> bool:
        self.counters.counted()
        if parameters and subject.saves and self.save_due():
            self.checkpoint(subject.save)
        if parameters and self.evaluations is not None and self.evaluations.turn(subject):
            return True
        if self.cadence.record_due():
            self.journal.look_for_folder()
            self._record()
        return False

    def wants_parameters(self, coming: int) -> bool:
        due = self.cadence.evaluation_due(self.counters.trained_all + coming)
        return (self.evaluations is not None and due) or self.save_due(coming)

    def trained(self) -> None:
        """Note that the training has ended."""
        self.cadence.end()
        self.counters.counted()
        self._said_how_to_resume = True

    def finish(self, evaluate: bool) -> None:
        """Write the last record, after the last evaluations. A signal ends them."""
        if self.evaluations is not None:
            self.evaluations.settle_copies(self.evaluations.transport)
            if evaluate:
                self.evaluations.finish()
        self._record()
        self.journal.progress.close()

    @property
    def results(self) -> Results:
        """Those of the last evaluation."""
        return self.evaluations.results if self.evaluations is not None else Results()

    @property
    def evaluated(self) -> bool:
        """Whether the results are those of the current parameters."""
        return self.evaluations is not None and self.evaluations.current

    @property
    def last_loss(self) -> float | None:
        """The mean training loss over the last epoch, or since the start if that is less; None without any samples."""
        return self.counters.losses.mean(self.journal.samples)

    def _record(self) -> None:
        now = self.now(self.counters.recent_loss())
        self.cadence.recorded()
        self.journal.write_at("train", now, **self.journal.bytes_exchanged(), **self.counters.record())
        rate = self.counters.trained_now / max(now.seconds - self.cadence.seconds_before, 1e-9)
        self.journal.progress.update(now.samples, rate, now.train_loss, self.results)

    # ---- checkpoints

    def save_due(self, coming: int = 0) -> bool:
        saver = self.saver()
        if saver is None or self.journal.gone:
            return False
        happened, free = self.witness.happened, lambda: not saver.busy
        if not self._measured and happened(free):
            self._measured = True
            self.cadence.written()
        self.tell_checkpoints()
        if not (self.cadence.checkpoint_due(self.counters.trained_all + coming) and happened(free)):
            return False
        return self.journal.look_for_folder()

    def checkpoint(self, save: Callable[[], None], since: float | None = None) -> None:
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
        self.tell_checkpoints()

    def tell_checkpoints(self) -> None:
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
        if not self._said_how_to_resume:
            self._said_how_to_resume = True
            first = f"first checkpoint, at epoch {samples / self.journal.samples:.2f}"
            resume = self.resume(self.journal.folder)
            self.journal.progress.line(f"{first}; if the run is cut off: {resume}")
