"""What the master does when it is due: evaluations, checkpoints, records, the display. Other ranks' monitors idle."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpitrain.checkpoint.state import State
from mpitrain.monitoring.cadence import Cadence
from mpitrain.monitoring.evaluation import Evaluation
from mpitrain.monitoring.progress import Progress
from mpitrain.monitoring.records import Metrics

if TYPE_CHECKING:
    from mpitrain.checkpoint.writer import Saver
    from mpitrain.training.context import Session
    from mpitrain.training.trainer import Trainer


class Monitor:
    """Of a rank that keeps no records: nothing is ever due, and nothing is said."""

    def __init__(self, progress: Progress | None = None) -> None:
        self.progress = progress or Progress("none", 1)

    def write(self, event: str, **fields: Any) -> None:
        """A record, where this rank keeps any."""

    def warn(self, text: str, **numbers: Any) -> None:
        """A warning to the user, and in the records."""
        self.progress.line(f"warning: {text}")
        self.write("warning", text=text, **numbers)

    def start(self) -> None:
        """Training begins now."""

    def turn(
        self,
        trainer: "Trainer",
        whole: bool = False,
        parameters: bool = True,
        saves: bool = True,
        punctual: bool = False,
    ) -> bool:
        """Do what is due; whether there was anything. `whole` evaluations are not cut into slices; `punctual` ones
        begin when they are due, even where the one before has to be finished first; without `parameters`, which lie
        elsewhere, nothing is evaluated or saved. `saves`: unless the protocol sees to that."""
        return False

    def save_due(self, coming: int = 0) -> bool:
        """Whether it is time for a checkpoint, `coming` samples from now."""
        return False

    def wants_parameters(self, coming: int) -> bool:
        """Whether the turn after `coming` more samples will evaluate or save."""
        return False

    def checkpoint(self, save: Callable[[], None]) -> None:
        """Have `save` save now. It is written while the training goes on, but for the last one."""
        save()


@dataclass
class Moment:
    """Of the training, when an evaluation began."""

    samples: int = 0
    step: int = 0
    seconds: float = 0.0
    train_loss: float | None = None


class MasterMonitor(Monitor):
    """Does what is due, and keeps the records of what the session counts."""

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
        self.samples = session.state.assignments.samples
        self.cadence = Cadence(session.config.run, session.clock, self.samples)
        self.results: dict[str, float] = {}
        self._evaluated = Moment()
        self._saving: dict[str, dict[str, Any]] = {}  # of the checkpoints that are being written, by name

    def write(self, event: str, **fields: Any) -> None:
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
        """The last record, after the last evaluation, unless these very parameters have been evaluated; a signal cuts
        it short."""
        self._counted()
        if evaluate and self.evaluation is not None:
            if not self.evaluated:  # or workers' last moves, which are not counted, have changed the centre
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
        return self.cadence.checkpoint_due(self.counters.trained_all + coming) and not saver.busy

    def checkpoint(self, save: Callable[[], None]) -> None:
        began, state, saver = self.session.clock(), self._counted(), self.session.saver
        state.seconds = self.cadence.seconds
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
        """Whether the results are of the session's very parameters."""
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
        """The mean training loss over the last epoch, or over all before its end; None where nothing was trained."""
        return self.counters.losses.mean(self.samples)

    def _counted(self) -> State:
        """The session's state, with the samples that have been counted."""
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
        """Exchanged by all ranks since the start: as workers say, else reckoned from this rank's, all being alike."""
        session = self.session
        if session.transport.size == 1:
            return {}
        if session.config.algorithm.has_master:
            return {"bytes_exchanged": int(sum(self.counters.traffic.values()))}
        return {"bytes_exchanged": int(len(session.members) * session.transport.traffic.both)}
