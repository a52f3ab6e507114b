"""Time to a given error, and what it says about several workers."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from mpitrain.files import Record
from mpitrain.report.values import finite


def time_to(records: Sequence[Record], key: str, target: float) -> float | None:
    """The time in seconds at which `key` first reached `target`, interpolated linearly between two evaluations."""
    before: tuple[float, float] | None = None
    for record in records:
        seconds, value = finite(record, "seconds"), finite(record, key)
        if seconds is None or value is None:
            continue
        if value <= target:
            if before is None:
                return seconds
            s, v = before
            return s + (seconds - s) * (v - target) / (v - value)
        before = seconds, value
    return None


@dataclass(frozen=True)
class Spread:
    """Values over the seeds, with their mean and sample standard deviation (0 for a single value)."""

    values: list[float]

    @property
    def mean(self) -> float | None:
        """The mean; None without values."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def std(self) -> float:
        """The standard deviation, with n − 1 in the denominator."""
        return statistics.stdev(self.values) if len(self.values) > 1 else 0.0


def speed_up(base: float, workers_of_base: int, seconds: float, workers: int) -> tuple[float, float]:
    """The speed-up, and the efficiency: the speed-up divided by the ratio of workers."""
    faster = base / seconds
    return faster, faster * workers_of_base / workers
