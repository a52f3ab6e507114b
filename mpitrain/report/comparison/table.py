"""The table of a comparison in the style of the papers: time to an error, speed-up (efficiency), error over seeds."""

import csv
import io
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mpitrain.errors import BadInput, printable
from mpitrain.files import Record
from mpitrain.monitoring.records import merit_of, shown
from mpitrain.report.comparison.matrix import FAIR, Element
from mpitrain.report.html import duration, show
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


class Spread:
    """The known values over the seeds, with their mean (None without values) and sample standard deviation, which has
    n − 1 in the denominator (None of fewer than two values)."""

    def __init__(self, values: Sequence[float | None]) -> None:
        self.of_seeds = values
        self.values = [value for value in values if value is not None]
        self.mean = statistics.fmean(self.values) if self.values else None
        self.std = statistics.stdev(self.values) if len(self.values) > 1 else None


def speed_up(base: float, workers_of_base: int, seconds: float, workers: int) -> tuple[float, float]:
    """The speed-up, and the efficiency: the speed-up divided by the ratio of workers."""
    faster = base / seconds
    return faster, faster * workers_of_base / workers


class TimesToTarget(Spread):
    """After how many seconds the curves of several seeds reached one target; None for a seed that did not, or is
    missing. `at_most`: some had reached it by their first evaluation, so that their times are upper bounds, as is the
    mean."""

    speed_up: float | None = None
    efficiency: float | None = None

    def __init__(self, curves: Sequence[Sequence[Record]], key: str, target: float) -> None:
        known = [[each for each in curve if finite(each, key) is not None] for curve in curves]
        super().__init__([time_to(curve, key, target) for curve in known])
        self.at_most = any(time_to(curve[:1], key, target) is not None for curve in known)


@dataclass
class Row:
    """A row of the table: a configuration with a number of workers."""

    configuration: str
    workers: int
    ranks: int
    seeds: list[int]
    runs: list[StoredRun]  # the finished ones
    error: Spread  # the final figures of merit by seed, None for a run that is not finished
    speed: Spread  # samples a second by seed
    merit: str
    config: Record  # the configuration of the first seed
    reached: dict[float, TimesToTarget]

    def mean_by_all(self, target: float) -> float | None:
        """The mean time to the target; None if it is an upper bound, or if a seed did not reach the target: the mean
        would leave out the slowest."""
        reached = self.reached[target]
        return reached.mean if len(reached.values) == len(self.seeds) and not reached.at_most else None


def rows(elements: list[Element], targets: list[float], test_set: str, baseline: str) -> list[Row]:
    """Rows in the order of the elements. Speed-ups are relative to the fewest workers of the baseline, or else of the
    row's own configuration. Raises BadInput naming a test set or baseline that does not exist."""
    read = [(element, element.finished()) for element in elements]
    merit = _merit([run.results for _, run in read if run])
    found, key = [], _key(test_set, merit)
    for configuration, workers in dict.fromkeys((element.configuration, element.workers) for element in elements):
        group = [each for each in read if (each[0].configuration, each[0].workers) == (configuration, workers)]
        own, of_seeds = [element for element, _ in group], [run for _, run in group]
        runs = [run for run in of_seeds if run]
        for run in runs:
            require_tested(run, test_set)
        error = Spread([finite(run.results, key) if run else None for run in of_seeds])
        speed = Spread([run.speed if run else None for run in of_seeds])
        ranks, seeds, config = own[0].ranks, [element.seed for element in own], own[0].config
        events = [run.events("evaluate") if run else [] for run in of_seeds]
        reached = {target: TimesToTarget(events, key, target) for target in targets}
        found.append(Row(configuration, workers, ranks, seeds, runs, error, speed, merit, config, reached))
    for row in found:
        of_base = [other for other in found if other.configuration == (baseline or row.configuration)]
        base = min(of_base, key=lambda other: other.workers)
        for target, times in row.reached.items():
            first, mean = base.mean_by_all(target), row.mean_by_all(target)
            if first and mean:
                times.speed_up, times.efficiency = speed_up(first, base.workers, mean, row.workers)
    return found


def require_tested(run: StoredRun, test_set: str) -> None:
    """Raise BadInput unless a finished run was tested on the test set, even if the result was not finite."""
    key = _key(test_set, merit_of(run.results))
    if key not in run.results and not any(key in record for record in run.events("evaluate")):
        raise BadInput(f"--test-set {test_set}: {run.folder} has no {key}")


def _key(test_set: str, merit: str) -> str:
    return f"{test_set.replace('-', '_')}_{merit}"


def _merit(results: list[Record]) -> str:
    """The name of the figure of merit of all finished runs ("error" if there are none). Raises BadInput if they have
    several."""
    merits = sorted({merit_of(each) for each in results}) or ["error"]
    if len(merits) > 1:
        raise BadInput(f"compare: the runs are measured by different figures of merit: {', '.join(merits)}")
    return merits[0]


def cells(found: list[Row]) -> tuple[list[str], list[list[str]]]:
    """The header and the lines of the table as text."""
    header = ["configuration", "workers", "ranks", "minibatch", "rate", "runs"]
    for target in found[0].reached:
        reached = f"{100 * target:.4g}%" if found[0].merit == "error" else f"{target:.4g}"
        header += [f"time to {reached}", "speed-up (efficiency)"]
    return [*header, "samples/s", f"final {shown(found[0].merit)}"], [_line(row) for row in found]


def _line(row: Row) -> list[str]:
    runs = f"{len(row.runs)}" if len(row.runs) == len(row.seeds) else f"{len(row.runs)} of {len(row.seeds)}"
    settings = [f"{row.config.get(key, '–')}" for key in FAIR]
    line = [printable(row.configuration), str(row.workers), str(row.ranks), *settings, runs]
    for reached in row.reached.values():
        line.append(_time(reached) if row.runs else "–")
        faster, share = reached.speed_up, reached.efficiency
        line.append("–" if faster is None or share is None else f"{faster:.2f} ({share:.0%})")
    speed, error, form = row.speed.mean, row.error, ".2%" if row.merit == "error" else ".4f"
    line.append(show(speed, "count"))
    spread = "" if error.std is None else f" ± {error.std:{form}}"
    return [*line, "–" if error.mean is None else f"{error.mean:{form}}{spread}"]


def _time(reached: TimesToTarget) -> str:
    count, seeds = len(reached.values), len(reached.of_seeds)
    if reached.mean is None:
        return "not reached"
    text = duration(reached.mean) + ("" if reached.std is None else f" ± {duration(reached.std)}")
    text = f"≤ {duration(reached.mean)}" if reached.at_most else text
    return text if count == seeds else f"{text}, {count} of {seeds}"


def markdown(header: list[str], lines: list[list[str]]) -> str:
    """A table in Markdown, with aligned columns."""
    lines = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    widths = [max(map(len, column)) for column in zip(header, *lines, strict=True)]
    every = [header, ["-" * width for width in widths], *lines]
    padded = [[cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in every]
    return "".join(f"| {' | '.join(line)} |\n" for line in padded)


def values(found: list[Row]) -> list[dict[str, Any]]:
    """Every number of the table, for compare.json."""
    return [
        {
            "configuration": printable(row.configuration),
            "workers": row.workers,
            "ranks": row.ranks,
            "seeds": row.seeds,
            "finished": len(row.runs),
            "merit": row.merit,
            **{key.partition(".")[2]: row.config.get(key) for key in FAIR},
            "final_errors": row.error.of_seeds,
            "final_error_mean": row.error.mean,
            "final_error_deviation": row.error.std,
            "samples_per_second_mean": row.speed.mean,
            "targets": [
                {
                    "error": target,
                    "seconds": reached.of_seeds,
                    "at_most": reached.at_most,
                    "seconds_mean": reached.mean,
                    "seconds_deviation": reached.std,
                    "speed_up": reached.speed_up,
                    "efficiency": reached.efficiency,
                }
                for target, reached in row.reached.items()
            ],
        }
        for row in found
    ]


def comma_separated(found: list[Row]) -> str:
    """One line for each row and target, for compare.csv, without the numbers of single seeds."""
    lines = [{**row, **target} for row in values(found) for target in row["targets"]]
    text = io.StringIO()
    names = [key for key, value in lines[0].items() if not isinstance(value, list)]
    writer = csv.DictWriter(text, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()
