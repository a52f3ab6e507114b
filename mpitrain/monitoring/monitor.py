"""Evaluations, checkpoints and records, which the master takes care of when they are due."""

from collections.abc import Callable
from dataclasses import dataclass

from mpitrain.checkpoint import late
from mpitrain.checkpoint.late import Moment
from mpitrain.monitoring.cadence import Cadence
from mpitrain.monitoring.checkpoints import Checkpoints
from mpitrain.monitoring.counters import Counters
from mpitrain.monitoring.evaluation import Results
from mpitrain.monitoring.evaluations import Evaluations, Subject
from mpitrain.monitoring.journal import FolderJournal
from mpitrain.monitoring.restarts import last_evaluated


class Monitor:
    """The monitor of a rank that keeps no records: nothing is ever due."""

    def start(self) -> None:
        """Begin the training."""

    def turn(self, subject: Subject, parameters: bool = True) -> bool:
        """Do what is due; returns whether an evaluation is in progress. Nothing is evaluated or saved without
        `parameters`, which this rank may not have."""
        return False

    def save_due(self, coming: int = 0) -> bool:
        """Whether a checkpoint is due after `coming` more samples."""
        return False

    def wants_parameters(self, coming: int) -> bool:
        """Whether an evaluation or a checkpoint is due after `coming` more samples."""
        return False

    def checkpoint(self, save: Callable[[], None], since: float | None = None) -> None:
        """Call `save`, which starts a checkpoint; ranks have waited for it since then, by default since now."""
        save()


@dataclass(eq=False)
class MasterMonitor(Monitor):
    """Evaluates, saves, and records the counts."""

    cadence: Cadence
    counters: Counters
    journal: FolderJournal
    checkpoints: Checkpoints
    now: Callable[[float | None], Moment]  # this moment, with a training loss
    evaluations: Evaluations | None = None

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

    def save_due(self, coming: int = 0) -> bool:
        return self.checkpoints.due(coming)

    def wants_parameters(self, coming: int) -> bool:
        due = self.cadence.evaluation_due(self.counters.trained_all + coming)
        return (self.evaluations is not None and due) or self.save_due(coming)

    def checkpoint(self, save: Callable[[], None], since: float | None = None) -> None:
        self.checkpoints.begin(save, since)

    def trained(self) -> None:
        """Note that the training has ended."""
        self.cadence.end()
        self.counters.counted()
        self.checkpoints.said_how_to_resume = True

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
