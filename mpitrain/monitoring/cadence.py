"""Decide when evaluations (by samples), records (by the clock) and checkpoints (by both) are due."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import floor, inf
from typing import Literal

RECORD_EVERY = 1.0  # seconds between two "train" records
ROUNDING = 1e-6  # samples by which a multiple of run.evaluate_every may be off
#: With `run.checkpoint_every = "auto"`: SHARE of the time that checkpoints may take; FIRST: seconds until the first, if
#: no evaluation comes before, and after one that failed; LONGEST: the most seconds by which writing alone, during which
#: the training goes on, delays the next; LEAST: seconds between two in any case.
SHARE, FIRST, LONGEST, LEAST = 0.02, 60.0, 300.0, 10.0


@dataclass(eq=False)
class Cadence:
    """The first three are keys of [run]; `samples`: an epoch's; `seconds`: training time with that before a resume."""

    evaluate_every: float
    checkpoint_every: float | Literal["auto"]
    checkpoint_samples: int
    clock: Callable[[], float]
    samples: int

    def __post_init__(self) -> None:
        self.start(0, 0.0, 0)

    def start(self, trained: int, seconds: float, evaluated: int) -> None:
        """Begin training, after `trained` samples and `seconds` in earlier starts of the program, the last evaluation
        after `evaluated` samples: if one was due since, it is due now."""
        self.seconds_before = seconds
        self._began = self._recorded = self._saved = self._saving = self.clock()
        self._saved_at, self._pause, self._still = trained, FIRST, 0.0
        self._over: float | None = None
        self.evaluating(evaluated)
        self._evaluates, self._saves = False, False

    @property
    def seconds(self) -> float:
        """Training time in seconds."""
        now = self.clock() if self._over is None else self._over
        return self.seconds_before + now - self._began - self._still

    def end(self) -> None:
        """End the training time: what follows, such as the last evaluation, does not count in it."""
        self._over = self.clock() if self._over is None else self._over

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Context of work that all ranks wait for and that does not count as training time, such as an evaluation."""
        began = self.clock()
        try:
            yield
        finally:
            self._still += self.clock() - began

    def evaluation_due(self, trained: int) -> bool:
        """Whether an evaluation is due after `trained` samples."""
        return trained >= self._next_evaluation

    def late(self, trained: int) -> float:
        """By what part of run.evaluate_every an evaluation that begins now is late."""
        return (trained - self._next_evaluation) / max(self.evaluate_every * self.samples, 1)

    def evaluating(self, trained: int) -> None:
        """Record that an evaluation begins: the next one is due at the next multiple of run.evaluate_every."""
        every = self.evaluate_every * self.samples
        self._evaluates = True
        # Multiples are rounded: 50 · (0.1 · 1438), which should be 7190, may be a little more.
        number = floor((trained + ROUNDING) / every) + 1 if every else inf
        self._next_evaluation = number * every - ROUNDING if every else inf

    @property
    def loss_window(self) -> int:
        """The number of samples over which an evaluation averages the training loss: those between two evaluations, at
        most an epoch."""
        return max(round(min(self.evaluate_every or 1.0, 1.0) * self.samples), 1)

    def record_due(self) -> bool:
        """Whether a "train" record is due."""
        return self.clock() - self._recorded >= RECORD_EVERY

    def recorded(self) -> None:
        """Record that a "train" record was written."""
        self._recorded = self.clock()

    def checkpoint_due(self, trained: int) -> bool:
        """Whether a checkpoint is due after `trained` samples or by the clock."""
        samples = self.checkpoint_samples
        return self._due_by_time(trained) or (bool(samples) and trained - self._saved_at >= samples)

    def _due_by_time(self, trained: int) -> bool:
        every = self.checkpoint_every
        if every != "auto":
            return bool(every) and self.clock() - self._saved >= 60 * every
        first = not self._saves and (self._evaluates or self.evaluation_due(trained))
        return first or self.clock() - self._saved >= self._pause

    def saved(self, trained: int, began: float) -> None:
        """Record that a checkpoint was started, for which the ranks have stood still since `began`."""
        self._saved, self._saved_at = self.clock(), trained
        self._saving, self._saves = began, True

    def written(self) -> None:
        """Record that the checkpoint started last is on the disk."""
        still, whole = self._saved - self._saving, self.clock() - self._saving
        self._pause = max(still / SHARE, min(whole / SHARE, LONGEST), LEAST)

    def failed(self) -> None:
        """Record that the checkpoint started last could not be written."""
        self._pause = FIRST
