"""What is due when: evaluations by samples, records by the clock, checkpoints by both."""

from collections.abc import Callable

from mpitrain.config import Run

RECORD_EVERY = 1.0  # seconds between two "train" records


class Cadence:
    """`samples` are those of an epoch; `seconds` are of training, those before a resume included."""

    def __init__(self, run: Run, clock: Callable[[], float], samples: int) -> None:
        self._run, self._clock, self._samples = run, clock, samples
        self.start(0, 0.0)

    def start(self, trained: int, seconds: float) -> None:
        """Training begins now, after so many samples and seconds in earlier starts."""
        self.seconds_before = seconds
        self._began = self._recorded = self._saved = self._clock()
        self._saved_at = trained
        self.evaluating(trained)

    @property
    def seconds(self) -> float:
        """Seconds of training."""
        return self.seconds_before + self._clock() - self._began

    def evaluation_due(self, trained: int) -> bool:
        """Whether so many samples are enough for the next evaluation."""
        return trained >= self._next_evaluation

    def evaluating(self, trained: int) -> None:
        """An evaluation begins: the next one is due at the next multiple of run.evaluate_every."""
        every = self._run.evaluate_every * self._samples
        self._next_evaluation = (trained // every + 1) * every if every else float("inf")

    @property
    def loss_window(self) -> int:
        """Samples that an evaluation's training loss is over: those between two evaluations, at most an epoch's."""
        return max(round(min(self._run.evaluate_every or 1.0, 1.0) * self._samples), 1)

    def record_due(self) -> bool:
        """Whether the last "train" record is old enough for another."""
        return self._clock() - self._recorded >= RECORD_EVERY

    def recorded(self) -> None:
        """A "train" record has been written."""
        self._recorded = self._clock()

    def checkpoint_due(self, trained: int) -> bool:
        """Whether so many samples, or the time, are enough for the next checkpoint."""
        minutes, samples = self._run.checkpoint_every, self._run.checkpoint_samples
        by_time = bool(minutes) and self._clock() - self._saved >= 60 * minutes
        return by_time or (bool(samples) and trained - self._saved_at >= samples)

    def saved(self, trained: int) -> None:
        """A checkpoint has been started."""
        self._saved, self._saved_at = self._clock(), trained
