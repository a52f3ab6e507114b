"""Time to a given error, and what it says about several workers."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


def time_to(records: Sequence[dict[str, Any]], key: str, target: float) -> float | None:
    """Seconds at which `key` first came down to `target`: between two evaluations on the line that joins them."""
    before: tuple[float, float] | None = None
    for record in records:
        if record.get(key) is None or record.get("seconds") is None:
            continue
        seconds, value = float(record["seconds"]), float(record[key])
        if value <= target:
            if before is None:
                return seconds
            s, v = before
            return s + (seconds - s) * (v - target) / (v - value)
        before = seconds, value
    return None


@dataclass(frozen=True)
class Spread:
    """Values over the seeds with their mean and sample standard deviation (0 of one value)."""

    values: list[float]

    @property
    def mean(self) -> float | None:
        """None without values."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def deviation(self) -> float:
        """With n − 1 in the denominator."""
        return statistics.stdev(self.values) if len(self.values) > 1 else 0.0


def speed_up(base: float, workers_of_base: int, seconds: float, workers: int) -> tuple[float, float]:
    """How many times as fast, and that for each worker more: the efficiency, 1 when twice the workers take half."""
    faster = base / seconds
    return faster, faster * workers_of_base / workers
