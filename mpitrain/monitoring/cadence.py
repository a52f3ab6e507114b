"""Decide when evaluations (by samples), records (by the clock) and checkpoints (by both) are due."""

from collections.abc import Callable

from mpitrain.config import Run

RECORD_EVERY = 1.0  # seconds between two "train" records


class Cadence:
    """`samples`: size of an epoch; `seconds`: training time, including that before a resume."""

    def __init__(self, run: Run, clock: Callable[[], float], samples: int) -> None:
        self._run, self._clock, self._samples = run, clock, samples
        self.start(0, 0.0)

    def start(self, trained: int, seconds: float) -> None:
        """Begin training, after `trained` samples and `seconds` in earlier starts of the program."""
        self.seconds_before = seconds
        self._began = self._recorded = self._saved = self._clock()
        self._saved_at = trained
        self.evaluating(trained)

    @property
    def seconds(self) -> float:
        """Training time in seconds."""
        return self.seconds_before + self._clock() - self._began

    def evaluation_due(self, trained: int) -> bool:
        """Whether an evaluation is due after `trained` samples."""
        return trained >= self._next_evaluation

    def evaluating(self, trained: int) -> None:
        """Record that an evaluation begins: the next one is due at the next multiple of run.evaluate_every."""
        every = self._run.evaluate_every * self._samples
        coming = (trained // every + 1) * every if every else float("inf")
        # 5 · (0.1 · 180374) is 90187.0, and 90187 // (0.1 · 180374) is 4: it would be due at once, again and again.
        self._next_evaluation = coming + every if coming <= trained else coming

    @property
    def loss_window(self) -> int:
        """The number of samples over which an evaluation averages the training loss: those between two evaluations, at
        most an epoch."""
        return max(round(min(self._run.evaluate_every or 1.0, 1.0) * self._samples), 1)

    def record_due(self) -> bool:
        """Whether a "train" record is due."""
        return self._clock() - self._recorded >= RECORD_EVERY

    def recorded(self) -> None:
        """Record that a "train" record was written."""
        self._recorded = self._clock()

    def checkpoint_due(self, trained: int) -> bool:
        """Whether a checkpoint is due after `trained` samples or by the clock."""
        minutes, samples = self._run.checkpoint_every, self._run.checkpoint_samples
        by_time = bool(minutes) and self._clock() - self._saved >= 60 * minutes
        return by_time or (bool(samples) and trained - self._saved_at >= samples)

    def saved(self, trained: int) -> None:
        """Record that a checkpoint was started."""
        self._saved, self._saved_at = self._clock(), trained
