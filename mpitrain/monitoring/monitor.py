"""Evaluations, checkpoints, records and the display, which the master takes care of when they are due."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from mpitrain.checkpoint import late
from mpitrain.checkpoint.late import CopyWriter, Moment
from mpitrain.checkpoint.state import State
from mpitrain.checkpoint.writer import Saver
from mpitrain.errors import BadInput
from mpitrain.files import Record
from mpitrain.flat import on_host
from mpitrain.monitoring.cadence import Cadence
from mpitrain.monitoring.counters import Counters
from mpitrain.monitoring.evaluation import Evaluation, Results
from mpitrain.monitoring.progress import Progress
from mpitrain.monitoring.records import Metrics
from mpitrain.monitoring.restarts import last_evaluated
from mpitrain.mpi import Transport
from mpitrain.mpi.witness import Witness
from mpitrain.signals import Stop
from mpitrain.stopwatch import Activity

CHECKPOINT = Activity("a checkpoint")
LATE = 0.1  # the part of run.evaluate_every by which an evaluation may be late without a warning


class Subject(Protocol):
    """What the monitor needs of a training in order to evaluate and save it."""

    all_wait: bool  # evaluations are not divided into slices: all ranks wait, and the time is no training time
    punctual: bool  # an evaluation begins as soon as it is due, even if the one before has to be finished first
    saves: bool  # the monitor begins checkpoints, not the protocol

    def refresh(self) -> None:
        """Bring the state up to date before it is evaluated."""

    def save(self) -> None:
        """Start a checkpoint of the state, up to date."""


class Monitor:
    """The monitor of a rank that keeps no records: nothing is ever due."""

    def __init__(self, progress: Progress | None = None, saver: Saver | None = None) -> None:
        self.progress, self.saver = progress or Progress("none", 1), saver

    def write(self, event: str, **fields: object) -> None:
        """Write a record, if this rank keeps records."""

    def warn(self, text: str, **numbers: object) -> None:
        """Warn the user, and record the warning."""
        self.progress.line(f"warning: {text}")
        self.write("warning", text=text, **numbers)

    def start(self) -> None:
        """Begin the training."""

    def turn(self, trainer: Subject, parameters: bool = True) -> bool:
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
    transport: Transport
    folder: Path  # the run folder
    find: Callable[[], Path | None]  # where the run folder is now; None: nowhere
    metrics: Metrics
    progress: Progress
    evaluation: Evaluation | None
    late: CopyWriter | None  # writes copies of the parameters, to be evaluated at the end
    stop: Stop
    exchanged: Callable[[], int | None]  # how many bytes all ranks have exchanged; None: no figure is recorded
    resume: Callable[[Path], str]  # the command that continues the run in a folder
    rate_at: Callable[[int], float]  # the common learning rate after this many samples
    saves_best: bool = False
    saver: Saver | None = None
    witness: Witness = field(default_factory=Witness)

    def __post_init__(self) -> None:
        self.gone = ""  # "moved" or "deleted": what has become of the run folder
        self.samples = self.counters.state.queue.samples
        self.results, self._evaluated = Results(), Moment()
        self._saving = defaultdict[str, list[Record]](list)  # records of the checkpoints being written, by name
        self._measured = True  # whether it is known what the last checkpoint has cost
        self._lacking = set[str]()  # other files that could not be written, and of which the user was warned
        self._said_how_to_resume = False
        self._crowded = ""  # "not said" or "said" that evaluations have to wait for those before

    def write(self, event: str, **fields: object) -> None:
        self.metrics.write(event, **fields)

    def start(self) -> None:
        """Begin the training; a resumed one begins with the evaluation that was cut off, while the other ranks wait."""
        trained = self.counters.trained_before
        late.forget(self.folder, trained)
        copies = [late.samples(copy) for copy in late.waiting(self.folder)]
        evaluated = max(last_evaluated(self.folder / "metrics.jsonl", trained), *copies, 0)
        self.cadence.start(trained, self.counters.state.seconds, evaluated)
        if self.evaluation is not None and self.cadence.evaluation_due(trained):
            self.cadence.evaluating(trained)
            self._begin_or_keep(self.evaluation)
            with self.cadence.standing_still():
                self._evaluate(self.evaluation)

    def turn(self, trainer: Subject, parameters: bool = True) -> bool:
        state = self._counted()
        if parameters and trainer.saves and self.save_due():
            self.checkpoint(trainer.save)
        if parameters and self.evaluation is not None:
            due = self.cadence.evaluation_due(state.trained)
            while due and trainer.punctual and self._evaluating:
                self._evaluate_slice(self.evaluation)
            if due and self.evaluation.active:
                self._crowded = self._crowded or "not said"
            elif due:
                self._say_late(state.trained)
                self.cadence.evaluating(state.trained)
                trainer.refresh()
                self._begin_or_keep(self.evaluation)
            if self._evaluating:
                if trainer.all_wait:
                    with self.cadence.standing_still():
                        self._evaluate(self.evaluation)
                else:
                    self._evaluate_slice(self.evaluation)
                return True
        if self.cadence.record_due():
            self._look_for_folder()
            self._record()
        return False

    def wants_parameters(self, coming: int) -> bool:
        evaluates = self.evaluation is not None and self.cadence.evaluation_due(self.counters.trained_all + coming)
        return evaluates or self.save_due(coming)

    def trained(self) -> None:
        """Note that the training has ended."""
        self.cadence.end()
        self._counted()
        self._said_how_to_resume = True

    def measure(self) -> None:
        """Begin the last evaluation, if the final parameters have not been evaluated yet: measure what the model keeps
        beside them, which the last checkpoint holds."""
        evaluation = self.evaluation
        if evaluation is not None and not self.evaluated:  # also if uncounted last moves of workers changed the centre
            self._begin_evaluation(evaluation)
            while evaluation.measures and self._evaluating:
                self._evaluate_slice(evaluation)

    def finish(self, evaluate: bool) -> None:
        """Write the last record, after the last evaluations. A signal ends them."""
        self.settle_copies(self.transport)
        if evaluate and self.evaluation is not None:
            self._evaluate_copies(self.evaluation)
            self._evaluate(self.evaluation)
        self._record()
        self.progress.close()

    # ---- checkpoints

    def save_due(self, coming: int = 0) -> bool:
        saver = self.saver
        if saver is None or self.gone:
            return False
        happened, free = self.witness.happened, lambda: not saver.busy
        if not self._measured and happened(free):
            self._measured = True
            self.cadence.written()
        self.tell_of_checkpoints(saver)
        if not (self.cadence.checkpoint_due(self.counters.trained_all + coming) and happened(free)):
            return False
        self._look_for_folder()
        return not self.gone

    def checkpoint(self, save: Callable[[], None], since: float | None = None) -> None:
        began, state, saver = self.cadence.clock(), self._counted(), self.saver
        state.seconds, before = self.cadence.seconds, saver.begun if saver is not None else 0
        with self.transport.stopwatch.on("rest", CHECKPOINT):
            save()
        self.cadence.saved(state.trained, began if since is None else since)
        if saver is None:
            return
        if saver.begun > before:  # peers only ask for a meeting, at which it is begun
            place = {"samples": state.trained, "step": state.index, "seconds": self.cadence.seconds}
            self._saving[f"{state.trained:012d}"] += [{**place, "held_seconds": self.cadence.clock() - began}]
            self._measured = False
        self.tell_of_checkpoints(saver)

    def tell_of_checkpoints(self, saver: "Saver") -> None:
        """Record the checkpoints that have been written, and warn of those that could not be."""
        for path, fault in saver.outcomes():
            places = self._saving[path.name]
            place = places.pop(0) if places else {}
            if not fault:
                self.write("checkpoint", **place, name=path.name)
                self._say_how_to_resume(int(path.name))
            elif path.name[0].isdigit():
                self.warn(f"{fault}; the training goes on without this checkpoint")
                self.cadence.failed()
            elif path.name not in self._lacking:  # the best model: it is tried again and again
                self._lacking.add(path.name)
                self.warn(f"{fault}; the training goes on without it")

    def _say_how_to_resume(self, samples: int) -> None:
        """Say it once, at the first checkpoint: when a rank is killed, the launcher ends all others before they can."""
        if not self._said_how_to_resume:
            self._said_how_to_resume = True
            first = f"first checkpoint, at epoch {samples / self.samples:.2f}"
            self.progress.line(f"{first}; if the run is cut off: {self.resume(self.folder)}")

    # ---- the run folder

    def _look_for_folder(self) -> None:
        """End the training if the run folder was moved or deleted; restore its file of records."""
        if self.gone:
            return
        found = self.find()
        if found == self.folder:
            self.metrics.restore()
        else:
            self.gone = "deleted" if found is None else "moved"
            where = "" if found is None else f" to {found}"
            self.warn(f"{self.folder} was {self.gone}{where}: the training ends with a checkpoint")
            self.stop.ask()

    def move(self, folder: Path) -> None:
        """Write into this folder from now on: the run folder at its present place, or another folder."""
        self.folder, self.find = folder, lambda: folder
        self.metrics.move(folder / "metrics.jsonl")

    # ---- evaluations

    @property
    def evaluated(self) -> bool:
        """Whether the results are those of the current parameters."""
        if self.evaluation is None or self.evaluation.active or not self.results:
            return False
        state, then = self.counters.state, self._evaluated
        return (then.samples, then.step) == (state.trained, state.index) and self.evaluation.is_of(state.model)

    @property
    def _evaluating(self) -> bool:
        return self.evaluation is not None and self.evaluation.active and not self.stop.flag

    def _now(self) -> Moment:
        state, loss = self.counters.state, self.counters.losses.mean(self.cadence.loss_window)
        return Moment(state.trained, state.index, self.cadence.seconds, loss, self.rate_at(state.trained))

    def _begin_or_keep(self, evaluation: Evaluation) -> None:
        """Begin an evaluation, or keep a copy of the parameters, to make it later."""
        if self.late is None:
            self._begin_evaluation(evaluation)
            return
        writer, model = self.late, self.counters.state.model
        with self._leaving_out():
            self.transport.alive_while(lambda: writer.keep(self.folder, self._now(), model))

    def _begin_evaluation(self, evaluation: Evaluation) -> None:
        self._evaluated = self._now()
        evaluation.begin(self.counters.state.model)

    def _say_late(self, trained: int) -> None:
        """Warn once if this evaluation comes late because the one before took so long."""
        if self._crowded == "not said" and self.cadence.late(trained) > LATE:
            self._crowded, at = "said", f"one begins at epoch {trained / self.samples:.2f}"
            self.warn(f"evaluations take longer than the training between them: {at} (run.evaluate_every)")

    def settle_copies(self, transport: Transport) -> None:
        """Wait until the copies that were kept are on the disk."""
        if self.late is not None:
            with self._leaving_out():
                transport.alive_while(self.late.settle)

    def _evaluate_copies(self, evaluation: Evaluation) -> None:
        """Evaluate the copies that were kept; then begin to evaluate the final parameters, unless a copy has them."""
        parameters = np.empty_like(on_host(self.counters.state.model))
        copies = late.waiting(self.folder)
        for copy in copies:
            with self._leaving_out():
                self._evaluated = late.read(copy, parameters)
                evaluation.begin(parameters)
                self._evaluate(evaluation)
            if self.stop.flag:
                return
            late.delete(copy)
        if copies and not self.evaluated:
            self._begin_evaluation(evaluation)

    @contextmanager
    def _leaving_out(self) -> Iterator[None]:
        """Warn of a copy that cannot be written or read, and go on without its evaluation."""
        try:
            yield
        except BadInput as error:
            self.warn(f"{error}; its evaluation is left out")

    def _evaluate(self, evaluation: Evaluation) -> None:
        """Evaluate all slices that are left, unless a stop is requested."""
        while self._evaluating:
            self._evaluate_slice(evaluation)

    def _evaluate_slice(self, evaluation: Evaluation) -> None:
        with self.transport.stopwatch.on("evaluation"):
            results = evaluation.step()
        self.transport.heartbeat()
        if results is None:
            return
        self.results, then = results, self._evaluated
        self._offer_best(evaluation, results)
        exchanged = self._bytes() if self.late is None else {}  # since then more were
        self.write("evaluate", **self._place(then), **exchanged, **results)
        self.progress.evaluated(then.samples / self.samples, then.seconds, then.train_loss, results)

    def _offer_best(self, evaluation: Evaluation, results: Results) -> None:
        part, saver = "dev" if "dev_loss" in results else "test", self.saver
        merit = results.get(f"{part}_{evaluation.merit}")
        if saver is None or not self.saves_best or merit is None:
            return
        self._look_for_folder()
        if not self.gone:
            saver.offer_best(merit, evaluation.parameters, self._evaluated.samples, evaluation.merit)

    # ---- records

    @property
    def last_loss(self) -> float | None:
        """The mean training loss over the last epoch, or since the start if that is less; None without any samples."""
        return self.counters.losses.mean(self.samples)

    def _counted(self) -> State:
        """The state, with the number of samples brought up to date."""
        state = self.counters.state
        state.trained = self.counters.trained_all
        return state

    def _record(self) -> None:
        state, seconds, loss = self.counters.state, self.cadence.seconds, self.counters.recent_loss()
        self.cadence.recorded()
        place = self._place(Moment(state.trained, state.index, seconds, loss, self.rate_at(state.trained)))
        self.write("train", **place, **self._bytes(), **self.counters.record())
        rate = self.counters.trained_now / max(seconds - self.cadence.seconds_before, 1e-9)
        self.progress.update(state.trained, rate, loss, self.results)

    def _place(self, at: Moment) -> Record:
        place = {"step": at.step, "samples": at.samples, "epoch": at.samples / self.samples}
        rate = {} if at.learning_rate is None else {"learning_rate": at.learning_rate}
        return {**place, "seconds": at.seconds, "train_loss": at.train_loss, **rate}

    def _bytes(self) -> dict[str, int]:
        exchanged = self.exchanged()
        return {} if exchanged is None else {"bytes_exchanged": exchanged}
