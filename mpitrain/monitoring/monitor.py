"""What the master keeps count of and when it evaluates, saves and reports. The other ranks have one that is idle."""

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mpitrain.checkpoint.state import State
from mpitrain.config import Config
from mpitrain.monitoring.evaluation import Evaluation
from mpitrain.monitoring.progress import Progress
from mpitrain.monitoring.records import Metrics
from mpitrain.sampling.assignments import Work
from mpitrain.sampling.means import Mean

if TYPE_CHECKING:
    from mpitrain.checkpoint.writer import Saver

RECORD_EVERY = 1.0  # seconds between two "train" records


class Monitor:
    """Counts what is trained; `turn` does what is due: a slice of evaluation, a checkpoint, a record, the display."""

    def __init__(self, config: Config, clock: Callable[[], float], state: State, samples: int) -> None:
        self.config, self.clock, self.samples = config, clock, samples
        self.exchange = "none"
        self.outstanding: Callable[[], list[Work]] = list
        self.saver: Saver | None = None
        self.save: Callable[[list[Work]], None] = lambda outstanding: None  # starts a checkpoint; see preparation.py
        self.refresh: Callable[[], None] = lambda: None  # brings `state` up to date before it is evaluated or saved
        self.stopping: Callable[[], bool] = lambda: False  # then there is no time to evaluate
        self.heartbeat: Callable[[], None] = lambda: None  # tells others, who may wait, that this rank is at work
        self.statistics: Callable[[], dict[str, Any]] = dict  # what else a protocol tells of the time since a record
        self.metrics: Metrics | None = None
        self.evaluation: Evaluation | None = None
        self.progress = Progress("none", 1)
        self.results: dict[str, float] = {}
        self.updates, self.refusals, self.busy = 0, 0, 0.0
        self.staleness_sum, self.staleness_max = 0, 0
        self.counts_staleness = True  # not where updates go to their place without a server that numbers them
        self.traffic: dict[int, float] = {}  # bytes that each worker has said it sent and received
        self.exchanged: Callable[[], float] | None = None  # by all ranks since the start; None with one
        self.counted: dict[str, Any] = {}  # what else a protocol counted, for summary.json
        self._stalenesses: Counter[int] = Counter()
        self._zeros, self._cosines = Mean(), Mean()
        self.trained_now = 0
        self._recent = Mean()  # loss since the last "train" record
        self._recent_loss: float | None = None  # of the last "train" record; None before anything has been trained
        self._began = clock()
        self._recorded = self._saved = self._began
        self._saving: dict[str, dict[str, Any]] = {}  # of the checkpoints that are being written, by name
        self.resume(state)
        self._evaluated_at: tuple[int, int] = (0, 0)
        self._evaluated_after = 0.0  # seconds of training
        self._evaluated_loss: float | None = None

    def resume(self, state: State) -> None:
        """Count from this state on."""
        self._losses = state.losses
        self.seconds_before, self._trained_before = state.seconds, state.trained
        self._saved_at = state.trained
        self._next_evaluation = self._evaluation_after(state.trained)

    # ---- what protocols report

    def trained(self, count: int, loss: float, busy: float = 0.0) -> None:
        """`count` samples with this summed loss have been trained on; the server was busy for so many seconds."""
        self.trained_now += count
        self.busy += busy
        self._recent.add(loss, count)
        self._losses.add(count, loss)

    def updated(self, staleness: int = 0, count: int = 1) -> None:
        """An update was applied, or `count` that are not stale or of unknown staleness."""
        self.updates += count
        self.staleness_sum += staleness
        self.staleness_max = max(self.staleness_max, staleness)
        self._stalenesses[staleness] += count

    def refused(self, worker: int, index: int, loss: float) -> None:
        """A gradient was not finite."""
        self.refusals += 1
        self.progress.line(f"rank {worker}: its gradient from update {index} is not finite; rejected")
        self.write("refused", worker=worker, index=index, loss=loss)

    def gradient_statistics(self, zeros: float, minibatches: int, cosine: float | None) -> None:
        """Mean share of exact zeros in these minibatches' gradients, cosine between two workers' sums (Chan & Lane
        §3.4)."""
        self._zeros.add(zeros * minibatches, minibatches)
        if cosine is not None:
            self._cosines.add(cosine)

    # ---- what is due

    def wants_parameters(self, coming: int) -> bool:
        """Whether the turn after `coming` more samples will evaluate or save."""
        if self.metrics is None:
            return False
        evaluate = self._trained_before + self.trained_now + coming >= self._next_evaluation
        return (self.evaluation is not None and evaluate) or self.save_due(coming)

    def turn(
        self,
        state: State,
        whole: bool = False,
        parameters: bool = True,
        saves: bool = True,
        punctual: bool = False,
    ) -> bool:
        """Do what is due; whether there was anything. `whole` evaluations are not cut into slices; `punctual` ones
        begin when they are due, even where the one before has to be finished first; without `parameters`, which lie
        elsewhere, nothing is evaluated or saved. `saves`: unless the protocol sees to that."""
        if self.metrics is None:
            return False
        state.trained = self._trained_before + self.trained_now
        now = self.clock()
        if not parameters:
            if now - self._recorded >= RECORD_EVERY:
                self._record(state, now)
            return False
        due = state.trained >= self._next_evaluation
        while due and punctual and self.evaluation is not None and self.evaluation.active and not self.stopping():
            self._evaluate_slice()
        if due and self.evaluation is not None and not self.evaluation.active:
            self._next_evaluation = self._evaluation_after(state.trained)
            self._begin_evaluation(state)
        if self.evaluation is not None and self.evaluation.active and not self.stopping():
            self._evaluate_slice()
            while whole and self.evaluation.active and not self.stopping():
                self._evaluate_slice()
            return True
        if now - self._recorded >= RECORD_EVERY:
            self._record(state, now)
        if saves and self.save_due():
            self.checkpoint(state)
        return False

    def save_due(self, coming: int = 0) -> bool:
        """Whether it is time for a checkpoint, `coming` samples from now."""
        if self.saver is None:
            return False
        self._tell_of_checkpoints(self.saver)
        run, trained = self.config.run, self._trained_before + self.trained_now + coming
        due = bool(run.checkpoint_every) and self.clock() - self._saved >= 60 * run.checkpoint_every
        due |= bool(run.checkpoint_samples) and trained - self._saved_at >= run.checkpoint_samples
        return due and not self.saver.busy

    def checkpoint(self, state: State) -> None:
        """Save now. It is written while the training goes on, but for the last one."""
        began = self.clock()
        self.refresh()
        state.trained = self._trained_before + self.trained_now
        state.seconds = self.seconds
        self.save(self.outstanding())
        self._saved, self._saved_at = self.clock(), state.trained
        place = {"samples": state.trained, "step": state.index, "seconds": self.seconds}
        if self.saver is not None and not self.saver.busy:  # whose turn has not come, as of peers before they meet
            self._saving.clear()
        self._saving[f"{state.trained:012d}"] = {**place, "held_seconds": self._saved - began}
        if self.saver is not None:
            self._tell_of_checkpoints(self.saver)

    def _tell_of_checkpoints(self, saver: "Saver") -> None:
        for path, fault in saver.outcomes():
            place = self._saving.pop(path.name, {})
            if fault:
                what = "this checkpoint" if path.name[0].isdigit() else "it"
                line = f"{fault}; the training goes on without {what}"
                self.progress.line(f"warning: {line}")
                self.write("warning", text=line)
            else:
                self.write("checkpoint", **place, name=path.name)

    @property
    def last_loss(self) -> float | None:
        """The mean training loss over the last epoch, or over all before its end; None where nothing was trained."""
        return self._losses.mean(self.samples)

    def evaluated(self, state: State) -> bool:
        """Whether the results are of these very parameters."""
        if self.evaluation is None or self.evaluation.active or not self.results:
            return False
        return self._evaluated_at == (state.trained, state.index) and self.evaluation.is_of(state.model)

    def finish(self, state: State, evaluate: bool) -> None:
        """The last record, after the last evaluation, unless these very parameters have been evaluated; a signal cuts
        it short."""
        state.trained = self._trained_before + self.trained_now
        if self.evaluation is not None and evaluate:
            if not self.evaluated(state):  # or workers' last moves, which are not counted, have changed the centre
                self._begin_evaluation(state)
            while self.evaluation.active and not self.stopping():
                self._evaluate_slice()
        self._record(state, self.clock())
        self.progress.close()

    @property
    def seconds(self) -> float:
        """Seconds of training, those before a resume included."""
        return self.seconds_before + self.clock() - self._began

    def start_clock(self) -> None:
        """Training begins now."""
        self._began = self._recorded = self._saved = self.clock()

    def write(self, event: str, **fields: Any) -> None:
        """A record, where this rank keeps any."""
        if self.metrics is not None:
            self.metrics.write(event, **fields)

    @property
    def samples_before(self) -> int:
        """Samples trained on before this start."""
        return self._trained_before

    def summary(self) -> dict[str, Any]:
        """The counts for summary.json."""
        counted = {
            "updates": self.updates,
            **self._staleness(),
            "gradients_refused": self.refusals,
            "server_busy_seconds": self.busy,
            "exchange": self.exchange,
            **self.counted,
        }
        if self.staleness_max:
            counted["staleness_histogram"] = {str(age): self._stalenesses[age] for age in sorted(self._stalenesses)}
        if self._zeros.count:
            counted["gradient_zeros_mean"] = self._zeros.value
            counted["gradient_cosine_mean"] = self._cosines.value
        return counted

    def _staleness(self) -> dict[str, float | None]:
        if not self.counts_staleness:
            return {"staleness_mean": None, "staleness_max": None}
        return {"staleness_mean": self.staleness_sum / max(self.updates, 1), "staleness_max": self.staleness_max}

    def _evaluation_after(self, trained: int) -> float:
        every = self.config.run.evaluate_every * self.samples
        return (trained // every + 1) * every if every else float("inf")

    @property
    def _loss_window(self) -> int:
        """Samples that an evaluation's training loss is over: those between two evaluations, at most an epoch's."""
        return max(round(min(self.config.run.evaluate_every or 1.0, 1.0) * self.samples), 1)

    def _begin_evaluation(self, state: State) -> None:
        assert self.evaluation is not None
        self.refresh()
        self._evaluated_at, self._evaluated_after = (state.trained, state.index), self.seconds
        self._evaluated_loss = self._losses.mean(self._loss_window)
        self.evaluation.begin(state.model)

    def _evaluate_slice(self) -> None:
        assert self.evaluation is not None
        results = self.evaluation.step()
        self.heartbeat()
        if results is not None:
            self.results = results
            trained, index = self._evaluated_at
            self._offer_best(results, trained)
            self.write(
                "evaluate",
                step=index,
                samples=trained,
                epoch=trained / self.samples,
                seconds=self._evaluated_after,
                train_loss=self._evaluated_loss,
                **self._bytes(),
                **results,
            )
            self.progress.evaluated(trained / self.samples, self._evaluated_after, self._evaluated_loss, results)

    def _offer_best(self, results: dict[str, float], trained: int) -> None:
        error = results.get("dev_error", results.get("test_error"))
        if self.saver is not None and self.config.run.checkpoint_best and error is not None:
            assert self.evaluation is not None
            self.saver.offer_best(error, self.evaluation.parameters, trained)

    def _record(self, state: State, now: float) -> None:
        if self._recent.count:  # else that of the record before still tells most
            self._recent_loss, self._recent = self._recent.value, Mean()
        self._recorded = now
        self.write(
            "train",
            step=state.index,
            samples=state.trained,
            epoch=state.trained / self.samples,
            seconds=self.seconds,
            train_loss=self._recent_loss,
            updates=self.updates,
            **self._staleness(),
            **self._bytes(),
            **self.statistics(),
        )
        rate = self.trained_now / max(self.seconds - self.seconds_before, 1e-9)
        self.progress.update(state.trained, rate, self._recent_loss, self.results.get("test_error"))

    def _bytes(self) -> dict[str, int]:
        return {} if self.exchanged is None else {"bytes_exchanged": int(self.exchanged())}
