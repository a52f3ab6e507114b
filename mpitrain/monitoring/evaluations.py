"""The evaluations of a run: begun, continued slice by slice, and recorded; or made of copies after the training."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from mpitrain.checkpoint import late
from mpitrain.checkpoint.late import CopyWriter, Moment
from mpitrain.errors import BadInput
from mpitrain.flat import Array, on_host
from mpitrain.monitoring.cadence import Cadence
from mpitrain.monitoring.counters import Counters
from mpitrain.monitoring.evaluation import Evaluation, Results
from mpitrain.monitoring.journal import FolderJournal
from mpitrain.mpi import Transport
from mpitrain.signals import Stop

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


@dataclass(eq=False)
class Evaluations:
    """One evaluation after the other. `offer_best`, where the best model is kept, takes a figure of merit, its
    parameters, how many samples these were trained on, and the figure's name."""

    evaluation: Evaluation
    journal: FolderJournal
    cadence: Cadence
    counters: Counters
    transport: Transport
    stop: Stop
    now: Callable[[float | None], Moment]  # this moment, with a training loss
    copies: CopyWriter | None = None  # writes copies of the parameters, to be evaluated at the end
    offer_best: Callable[[float, Array, int, str], None] | None = None

    def __post_init__(self) -> None:
        self.results, self._evaluated = Results(), Moment()
        self._crowded = ""  # "not said" or "said" that evaluations have to wait for those before

    @property
    def current(self) -> bool:
        """Whether the results are those of the current parameters."""
        if self.evaluation.active or not self.results:
            return False
        state, then = self.counters.state, self._evaluated
        return (then.samples, then.step) == (state.trained, state.index) and self.evaluation.is_of(state.model)

    def start(self) -> None:
        """Make the one that is due at the start, which was cut off before a resume, while the other ranks wait."""
        if self.cadence.evaluation_due(self.counters.trained_before):
            self.cadence.evaluating(self.counters.trained_before)
            self._begin_or_keep()
            with self.cadence.standing_still():
                self._complete()

    def turn(self, subject: Subject) -> bool:
        """Begin the one that is due, and evaluate a slice, or everything if all ranks wait; returns whether there was
        something to evaluate."""
        trained = self.counters.trained_all
        due = self.cadence.evaluation_due(trained)
        while due and subject.punctual and self._under_way:
            self._step()
        if due and self.evaluation.active:
            self._crowded = self._crowded or "not said"
        elif due:
            self._say_late(trained)
            self.cadence.evaluating(trained)
            subject.refresh()
            self._begin_or_keep()
        if not self._under_way:
            return False
        if subject.all_wait:
            with self.cadence.standing_still():
                self._complete()
        else:
            self._step()
        return True

    def measure(self) -> None:
        """Begin the last one, if the final parameters have not been evaluated yet: measure what the model keeps beside
        them, which the last checkpoint holds."""
        if not self.current:  # also if uncounted last moves of workers changed the centre
            self._begin()
            while self.evaluation.measures and self._under_way:
                self._step()

    def finish(self) -> None:
        """Make the last ones. A signal ends them."""
        self._evaluate_copies()
        self._complete()

    def settle_copies(self, transport: Transport) -> None:
        """Wait until the copies that were kept are on the disk."""
        if self.copies is not None:
            with self._leaving_out():
                transport.alive_while(self.copies.settle)

    @property
    def _under_way(self) -> bool:
        return self.evaluation.active and not self.stop.flag

    def _begin_or_keep(self) -> None:
        """Begin one, or keep a copy of the parameters, to make it later."""
        if self.copies is None:
            self._begin()
            return
        copies, model = self.copies, self.counters.state.model
        with self._leaving_out():
            self.transport.alive_while(lambda: copies.keep(self.journal.folder, self._now(), model))

    def _begin(self) -> None:
        self._evaluated = self._now()
        self.evaluation.begin(self.counters.state.model)

    def _now(self) -> Moment:
        return self.now(self.counters.losses.mean(self.cadence.loss_window))

    def _say_late(self, trained: int) -> None:
        """Warn once if this evaluation comes late because the one before took so long."""
        if self._crowded == "not said" and self.cadence.late(trained) > LATE:
            self._crowded, at = "said", f"one begins at epoch {trained / self.journal.samples:.2f}"
            self.journal.warn(f"evaluations take longer than the training between them: {at} (run.evaluate_every)")

    def _evaluate_copies(self) -> None:
        """Evaluate the copies that were kept; then begin to evaluate the final parameters, unless a copy has them."""
        parameters = np.empty_like(on_host(self.counters.state.model))
        copies = late.waiting(self.journal.folder)
        for copy in copies:
            with self._leaving_out():
                self._evaluated = late.read(copy, parameters)
                self.evaluation.begin(parameters)
                self._complete()
            if self.stop.flag:
                return
            late.delete(copy)
        if copies and not self.current:
            self._begin()

    @contextmanager
    def _leaving_out(self) -> Iterator[None]:
        """Warn of a copy that cannot be written or read, and go on without its evaluation."""
        try:
            yield
        except BadInput as error:
            self.journal.warn(f"{error}; its evaluation is left out")

    def _complete(self) -> None:
        """Evaluate all slices that are left, unless a stop is requested."""
        while self._under_way:
            self._step()

    def _step(self) -> None:
        """Evaluate a slice; with the last one, record the results."""
        with self.transport.stopwatch.on("evaluation"):
            results = self.evaluation.step()
        self.transport.heartbeat()
        if results is None:
            return
        self.results, then, name = results, self._evaluated, self.evaluation.merit
        merit = results.get(f"dev_{name}" if "dev_loss" in results else f"test_{name}")
        if self.offer_best is not None and merit is not None:
            self.offer_best(merit, self.evaluation.parameters, then.samples, name)
        exchanged = self.journal.bytes_exchanged() if self.copies is None else {}  # since then more were
        self.journal.write_at("evaluate", then, **exchanged, **results)
        self.journal.progress.evaluated(then.samples / self.journal.samples, then.seconds, then.train_loss, results)
