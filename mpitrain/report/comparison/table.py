"""The table of a comparison in the style of the papers: time to an error, speed-up (efficiency), error over seeds."""

import csv
import io
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from mpitrain.errors import BadInput, printable
from mpitrain.files import Record
from mpitrain.report.comparison.matrix import Element
from mpitrain.report.html import duration
from mpitrain.report.records import finite
from mpitrain.report.runs import StoredRun


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


@dataclass
class TimesToTarget:
    """When the finished runs of a row reached one target; `seconds` is None for a seed that did not."""

    seconds: list[float | None]
    speed_up: float | None = None
    efficiency: float | None = None

    @property
    def spread(self) -> Spread:
        """Mean and spread over the runs that reached it."""
        return Spread([value for value in self.seconds if value is not None])


@dataclass
class Row:
    """A row of the table: a configuration with a number of workers."""

    configuration: str
    workers: int
    ranks: int
    seeds: list[int]
    runs: list[StoredRun]  # the finished ones
    error: Spread
    speed: Spread
    reached: dict[float, TimesToTarget] = field(default_factory=dict)

    def by_all(self, target: float) -> bool:
        """Whether every seed reached the target; otherwise the mean would leave out the slowest."""
        return len(self.runs) == len(self.seeds) and None not in self.reached[target].seconds


def rows(elements: list[Element], targets: list[float], test_set: str, baseline: str) -> list[Row]:
    """Rows in the order of the elements. Speed-ups are relative to the fewest workers of the baseline, or else of the
    row's own configuration. Raises BadInput naming a test set or baseline that does not exist."""
    key = f"{test_set.replace('-', '_')}_error"
    found = []
    for configuration, workers in dict.fromkeys((element.configuration, element.workers) for element in elements):
        own = [element for element in elements if (element.configuration, element.workers) == (configuration, workers)]
        runs = [run for element in own if element.state() == "finished" and (run := element.read())]
        for run in runs:
            if key not in run.results:
                raise BadInput(f"--test-set {test_set}: {run.folder} has no {key}")
        row = Row(
            configuration,
            workers,
            own[0].ranks,
            [element.seed for element in own],
            runs,
            Spread([error for run in runs if (error := finite(run.results, key)) is not None]),
            Spread([speed for run in runs if (speed := finite(run.results, "samples_per_second")) is not None]),
        )
        row.reached = {to: TimesToTarget([time_to(run.events("evaluate"), key, to) for run in runs]) for to in targets}
        found.append(row)
    _compare(found, baseline)
    return found


def _compare(found: list[Row], baseline: str) -> None:
    for row in found:
        base = min((other for other in found if other.configuration == (baseline or row.configuration)), key=_workers)
        for target, reached in row.reached.items():
            first = base.reached[target]
            if row.by_all(target) and base.by_all(target) and reached.spread.mean and first.spread.mean:
                of_base, own = (first.spread.mean, base.workers), (reached.spread.mean, row.workers)
                reached.speed_up, reached.efficiency = speed_up(*of_base, *own)


def _workers(row: Row) -> int:
    return row.workers


def cells(found: list[Row]) -> tuple[list[str], list[list[str]]]:
    """The header and the lines of the table as text."""
    targets = list(found[0].reached)
    header = ["configuration", "workers", "ranks", "runs"]
    for to in targets:
        header += [f"time to {100 * to:.4g}%", "speed-up (efficiency)"]
    header += ["samples/s", "final error"]
    return header, [_line(row) for row in found]


def _line(row: Row) -> list[str]:
    runs = f"{len(row.runs)}" if len(row.runs) == len(row.seeds) else f"{len(row.runs)} of {len(row.seeds)}"
    line = [printable(row.configuration), str(row.workers), str(row.ranks), runs]
    for reached in row.reached.values():
        line.append(_time(reached, len(row.seeds)))
        faster, share = reached.speed_up, reached.efficiency
        line.append("–" if faster is None or share is None else f"{faster:.2f} ({share:.0%})")
    speed, error = row.speed.mean, row.error
    line.append("–" if speed is None else f"{speed:,.0f}")
    spread = f" ± {error.std:.2%}" if len(error.values) > 1 else ""
    line.append("–" if error.mean is None else f"{error.mean:.2%}{spread}")
    return line


def _time(reached: TimesToTarget, seeds: int) -> str:
    mean, times = reached.spread.mean, reached.spread
    if not reached.seconds:
        return "–"
    if mean is None:
        return "not reached"
    text = duration(mean) + (f" ± {duration(times.std)}" if len(times.values) > 1 else "")
    return text if len(times.values) == seeds else f"{text}, {len(times.values)} of {seeds}"


def markdown(found: list[Row]) -> str:
    """The table in Markdown, with aligned columns."""
    header, lines = cells(found)
    lines = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    widths = [max(map(len, column)) for column in zip(header, *lines, strict=True)]
    every = [header, ["-" * width for width in widths], *lines]
    return "".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |\n"
        for line in every
    )


def values(found: list[Row]) -> list[Record]:
    """Every number of the table, for compare.json."""
    return [
        {
            "configuration": printable(row.configuration),
            "workers": row.workers,
            "ranks": row.ranks,
            "seeds": row.seeds,
            "finished": len(row.runs),
            "final_errors": row.error.values,
            "final_error_mean": row.error.mean,
            "final_error_deviation": row.error.std,
            "samples_per_second_mean": row.speed.mean,
            "targets": _targets(row),
        }
        for row in found
    ]


def _targets(row: Row) -> list[Record]:
    return [
        {
            "error": target,
            "seconds": reached.seconds,
            "seconds_mean": reached.spread.mean,
            "seconds_deviation": reached.spread.std,
            "speed_up": reached.speed_up,
            "efficiency": reached.efficiency,
        }
        for target, reached in row.reached.items()
    ]


def comma_separated(found: list[Row]) -> str:
    """One line for each row and target, for compare.csv."""
    lines = [
        {key: value for key, value in {**line, **target}.items() if not isinstance(value, list)}
        for row, line in zip(found, values(found), strict=True)
        for target in _targets(row)
    ]
    text = io.StringIO()
    writer = csv.DictWriter(text, lines[0].keys(), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()
