"""Evaluations, checkpoints, records and the display, which the master takes care of when they are due."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mpitrain.checkpoint.state import State
from mpitrain.files import Record
from mpitrain.monitoring.cadence import Cadence
from mpitrain.monitoring.evaluation import Evaluation
from mpitrain.monitoring.progress import Progress
from mpitrain.monitoring.records import Metrics
from mpitrain.stopwatch import About

if TYPE_CHECKING:
    from mpitrain.checkpoint.writer import Saver
    from mpitrain.training.context import Session
    from mpitrain.training.trainer import Trainer

CHECKPOINT = About("a checkpoint")


class Monitor:
    """The monitor of a rank that keeps no records: nothing is ever due."""

    def __init__(self, progress: Progress | None = None) -> None:
        self.progress = progress or Progress("none", 1)

    def write(self, event: str, **fields: object) -> None:
        """Write a record, if this rank keeps records."""

    def warn(self, text: str, **numbers: object) -> None:
        """Warn the user, and record the warning."""
        self.progress.line(f"warning: {text}")
        self.write("warning", text=text, **numbers)

    def start(self) -> None:
        """Begin the training."""

    def turn(
        self,
        trainer: "Trainer",
        whole: bool = False,
        parameters: bool = True,
        saves: bool = True,
        punctual: bool = False,
    ) -> bool:
        """Do what is due; returns whether an evaluation is in progress.

        `whole`: do not divide evaluations into slices. `punctual`: begin an evaluation as soon as it is due, even if
        the previous one has to be finished first. Nothing is evaluated or saved without `parameters`, which this rank
        may not have, and nothing is saved without `saves`, if the protocol does that itself.
        """
        return False

    def save_due(self, coming: int = 0) -> bool:
        """Whether a checkpoint is due after `coming` more samples."""
        return False

    def wants_parameters(self, coming: int) -> bool:
        """Whether an evaluation or a checkpoint is due after `coming` more samples."""
        return False

    def checkpoint(self, save: Callable[[], None]) -> None:
        """Call `save`, which starts a checkpoint."""
        save()


@dataclass
class Moment:
    """The state of the training at the beginning of an evaluation."""

    samples: int = 0
    step: int = 0
    seconds: float = 0.0
    train_loss: float | None = None


class MasterMonitor(Monitor):
    """Evaluates, saves, and records the session's counts."""

    def __init__(
        self,
        session: "Session",
        folder: Path,
        metrics: Metrics,
        progress: Progress,
        evaluation: Evaluation | None = None,
    ) -> None:
        super().__init__(progress)
        self.session, self.counters, self.folder = session, session.counters, folder
        self._metrics, self.evaluation = metrics, evaluation
        self.samples = session.state.queue.samples
        self.cadence = Cadence(session.config.run, session.clock, self.samples)
        self.results: dict[str, float] = {}
        self._evaluated = Moment()
        self._saving: dict[str, Record] = {}  # records of the checkpoints that are being written, by name

    def write(self, event: str, **fields: object) -> None:
        self._metrics.write(event, **fields)

    def start(self) -> None:
        self.cadence.start(self.counters.trained_before, self.session.state.seconds)

    def turn(
        self,
        trainer: "Trainer",
        whole: bool = False,
        parameters: bool = True,
        saves: bool = True,
        punctual: bool = False,
    ) -> bool:
        state = self._counted()
        if parameters and self.evaluation is not None:
            due = self.cadence.evaluation_due(state.trained)
            while due and punctual and self._evaluating:
                self._evaluate_slice(self.evaluation)
            if due and not self.evaluation.active:
                self.cadence.evaluating(state.trained)
                trainer.refresh()
                self._begin_evaluation(self.evaluation)
            if self._evaluating:
                self._evaluate_slice(self.evaluation)
                while whole and self._evaluating:
                    self._evaluate_slice(self.evaluation)
                return True
        if self.cadence.record_due():
            self._record()
        if parameters and saves and self.save_due():
            self.checkpoint(trainer.save)
        return False

    def wants_parameters(self, coming: int) -> bool:
        evaluates = self.evaluation is not None and self.cadence.evaluation_due(self.counters.trained_all + coming)
        return evaluates or self.save_due(coming)

    def finish(self, evaluate: bool) -> None:
        """Write the last record, after a last evaluation if the final parameters have not been evaluated yet. A signal
        ends the evaluation."""
        self._counted()
        if evaluate and self.evaluation is not None:
            if not self.evaluated:  # also if uncounted last moves of workers have changed the centre
                self._begin_evaluation(self.evaluation)
            while self._evaluating:
                self._evaluate_slice(self.evaluation)
        self._record()
        self.progress.close()

    # ---- checkpoints

    def save_due(self, coming: int = 0) -> bool:
        saver = self.session.saver
        if saver is None:
            return False
        self._tell_of_checkpoints(saver)
        due = self.cadence.checkpoint_due(self.counters.trained_all + coming)
        return due and self.session.witness.happened(lambda: not saver.busy)

    def checkpoint(self, save: Callable[[], None]) -> None:
        began, state, saver = self.session.clock(), self._counted(), self.session.saver
        state.seconds = self.cadence.seconds
        with self.session.transport.stopwatch.on("rest", CHECKPOINT):
            save()
        self.cadence.saved(state.trained)
        place = {"samples": state.trained, "step": state.index, "seconds": self.cadence.seconds}
        self._saving[f"{state.trained:012d}"] = {**place, "held_seconds": self.session.clock() - began}
        if saver is not None:
            self._tell_of_checkpoints(saver)

    def _tell_of_checkpoints(self, saver: "Saver") -> None:
        for path, fault in saver.outcomes():
            place = self._saving.pop(path.name, {})
            if fault:
                what = "this checkpoint" if path.name[0].isdigit() else "it"
                self.warn(f"{fault}; the training goes on without {what}")
            else:
                self.write("checkpoint", **place, name=path.name)

    # ---- evaluations

    @property
    def evaluated(self) -> bool:
        """Whether the results are those of the session's current parameters."""
        if self.evaluation is None or self.evaluation.active or not self.results:
            return False
        state, then = self.session.state, self._evaluated
        return (then.samples, then.step) == (state.trained, state.index) and self.evaluation.is_of(state.model)

    @property
    def _evaluating(self) -> bool:
        return self.evaluation is not None and self.evaluation.active and not self.session.stop.flag

    def _begin_evaluation(self, evaluation: Evaluation) -> None:
        state, loss = self.session.state, self.counters.losses.mean(self.cadence.loss_window)
        self._evaluated = Moment(state.trained, state.index, self.cadence.seconds, loss)
        evaluation.begin(state.model)

    def _evaluate_slice(self, evaluation: Evaluation) -> None:
        with self.session.transport.stopwatch.on("evaluation"):
            results = evaluation.step()
        self.session.transport.heartbeat()
        if results is None:
            return
        self.results, then = results, self._evaluated
        self._offer_best(evaluation, results)
        epoch = then.samples / self.samples
        place = {"step": then.step, "samples": then.samples, "epoch": epoch, "seconds": then.seconds}
        self.write("evaluate", **place, train_loss=then.train_loss, **self._bytes(), **results)
        self.progress.evaluated(epoch, then.seconds, then.train_loss, results)

    def _offer_best(self, evaluation: Evaluation, results: dict[str, float]) -> None:
        error, saver = results.get("dev_error", results.get("test_error")), self.session.saver
        if saver is not None and self.session.config.run.checkpoint_best and error is not None:
            saver.offer_best(error, evaluation.parameters, self._evaluated.samples)

    # ---- records

    @property
    def last_loss(self) -> float | None:
        """The mean training loss over the last epoch, or since the start if that is less; None without any samples."""
        return self.counters.losses.mean(self.samples)

    def _counted(self) -> State:
        """The session's state, with the number of samples brought up to date."""
        state = self.session.state
        state.trained = self.counters.trained_all
        return state

    def _record(self) -> None:
        state, seconds, loss = self.session.state, self.cadence.seconds, self.counters.recent_loss()
        self.cadence.recorded()
        self.write(
            "train",
            step=state.index,
            samples=state.trained,
            epoch=state.trained / self.samples,
            seconds=seconds,
            train_loss=loss,
            **self._bytes(),
            **self.counters.record(),
        )
        rate = self.counters.trained_now / max(seconds - self.cadence.seconds_before, 1e-9)
        self.progress.update(state.trained, rate, loss, self.results.get("test_error"))

    def _bytes(self) -> dict[str, int]:
        """Bytes exchanged by all ranks since the start: reported by workers, or else this rank's times their number."""
        session = self.session
        if session.transport.size == 1:
            return {}
        if session.config.algorithm.has_master:
            return {"bytes_exchanged": int(sum(self.counters.traffic.values()))}
        followers = session.team.traffic.both if session.team is not None else 0
        return {"bytes_exchanged": int(len(session.members) * (session.transport.traffic.both + followers))}
