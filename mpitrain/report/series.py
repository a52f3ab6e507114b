"""The curves of a report: one key of a run's records against seconds and samples, thinned for drawing."""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from mpitrain.files import Record
from mpitrain.monitoring.records import FIGURES, by_part, merit_of, shown
from mpitrain.report.records import finite
from mpitrain.report.runs import StoredRun

MOST = 240  # most points of a curve; a plot cannot show more
PIECES = 25  # number of pieces of a run over which the speed is averaged
DRAWN = 1e200  # numbers with a larger absolute value than this, or a smaller one than its inverse, are not drawn


class Point(NamedTuple):
    """One value of a curve; in the distribution of staleness, `seconds` and `samples` are both the age in updates."""

    seconds: float
    samples: float
    value: float


class Plot(NamedTuple):
    """A plot, with its curves by the number of the run. `form`: "number", "percent" or "bytes"; `log`: whether its
    scale is logarithmic at first; `axis`: what it is drawn over, "" if the reader chooses."""

    key: str
    title: str
    form: str = "number"
    log: bool = False
    axis: str = ""
    curves: Mapping[int, list[Point]] = {}


def plots(runs: list[StoredRun]) -> list[Plot]:
    """All plots for which at least one run has data."""
    kinds = [
        Plot("train_loss", "Training loss", log=True),
        *held_out(runs),
        Plot("learning_rate", "Learning rate"),
        Plot("samples_per_second", "Samples a second"),
        Plot("staleness", "Mean staleness, updates"),
        Plot("staleness_histogram", "Share of updates by staleness", "percent", axis="staleness"),
        Plot("bytes_exchanged", "Bytes sent and received so far", "bytes"),
        *(Plot(name, each.title, each.form, each.log) for name, each in FIGURES.items() if each.title),
    ]
    found = []
    for kind in kinds:
        curves = {number: curve for number, run in enumerate(runs) if (curve := curve_of(run, kind.key))}
        positive = all(point.value > 0 for curve in curves.values() for point in curve)  # 0 has no logarithm
        found += [kind._replace(curves=curves, log=kind.log and positive)] if curves else []
    return found


def held_out(runs: list[StoredRun]) -> list[Plot]:
    """Figures of merit and loss of every held-out part that was evaluated: "test", "test noisy", "dev"."""
    last = [record for run in runs for record in run.events("evaluate")[-1:]]
    names = dict.fromkeys(name for record in last for name in by_part(record))
    classify = any(f"{name.replace(' ', '_')}_error" in record for record in last for name in names)
    merits = dict.fromkeys([*(["error"] if classify else []), *map(merit_of, last)])
    found = []
    for name in names:
        key, title = name.replace(" ", "_"), name[:1].upper() + name[1:]
        for merit in merits:
            form = "percent" if merit == "error" else "number"
            found += [Plot(f"{key}_{merit}", f"{title} {shown(merit)}", form, log=merit == "error")]
        found += [Plot(f"{key}_loss", f"{title} loss", log=True)] if "loss" not in merits else []
    return found


def curve_of(run: StoredRun, key: str) -> list[Point]:
    """The curve of a plot's key: calculated if there is a function for it, or as recorded."""
    if key in CALCULATED:
        return CALCULATED[key](run)
    return _points(run.events("train", "evaluate"), key)


def train_loss(run: StoredRun) -> list[Point]:
    """The mean training loss since the previous record of training or, if there are more evaluations than such records,
    over the epoch before each evaluation. A last record of few samples is averaged with the one before it."""
    found, evaluated = (_points(run.events(kind), "train_loss") for kind in ("train", "evaluate"))
    if len(evaluated) > len(found):
        return evaluated
    if len(found) > 2:
        before, last = found[-2].samples - found[-3].samples, found[-1].samples - found[-2].samples
        if 4 * last < before:
            mean = (before * found[-2].value + last * found[-1].value) / (before + last)
            found[-2:] = [found[-1]._replace(value=mean)]
    return found


def throughput(run: StoredRun) -> list[Point]:
    """The mean samples a second of each piece of about 1/25 of the run's time, at its end. No piece spans a resume."""
    found: list[Point] = []
    kind = "train" if len(run.events("train")) > 3 else "evaluate"
    places = run.events("start", kind)
    piece = max((_number(record, "seconds") or 0 for record in places), default=0) / PIECES
    before = 0.0, 0.0
    for record in places:
        seconds, samples = _number(record, "seconds"), _number(record, "samples")
        if seconds is None or samples is None:
            continue
        if record["event"] == "start":
            before = seconds, samples
        elif seconds > before[0] and seconds - before[0] >= piece and samples > before[1]:
            speed = (samples - before[1]) / (seconds - before[0])
            found += [Point(seconds, samples, speed)] if speed < DRAWN else []
            before = seconds, samples
    return found


def staleness(run: StoredRun) -> list[Point]:
    """The mean staleness of the updates since the previous record, or since the start if records do not count
    updates."""
    found: list[Point] = []
    updates, total = 0.0, 0.0
    for record in run.events("start", "train"):
        if record["event"] == "start":
            updates, total = 0.0, 0.0  # the mean and the count begin with each start of the program
            continue
        mean, now = _number(record, "staleness_mean"), _number(record, "updates")
        if mean is None or now is None or now <= updates:
            continue
        recent = (mean * now - total) / (now - updates)
        found += _points([record | {"recent": max(recent, 0.0)}], "recent")
        updates, total = now, mean * now
    return found if any(point.value for point in found) else []


def exchanged(run: StoredRun) -> list[Point]:
    """The bytes that all ranks exchanged since the run began; the records count anew from each start of the program."""
    found, before, last = list[Record](), 0.0, 0.0
    for record in run.events("start", "train", "evaluate"):
        if record["event"] == "start":
            before, last = before + last, 0.0
        elif (count := _number(record, "bytes_exchanged")) is not None:
            last = count
            found.append(record | {"so_far": before + last})
    return _points(found, "so_far")


def ages_of_updates(run: StoredRun) -> list[Point]:
    """Fractions of the updates whose gradient was 0, 1, 2, … updates old."""
    counts: dict[str, float] = run.results.get("staleness_histogram") or {}  # type: ignore[assignment]  # was checked
    by_age, whole = {int(age): count for age, count in counts.items()}, sum(counts.values())
    return [Point(age, age, by_age.get(age, 0) / whole) for age in range(max(by_age) + 1)] if whole else []


CALCULATED: dict[str, Callable[[StoredRun], list[Point]]] = {
    "train_loss": train_loss,
    "samples_per_second": throughput,
    "staleness": staleness,
    "staleness_histogram": ages_of_updates,
    "bytes_exchanged": exchanged,
}


def thin(curve: list[Point]) -> list[Point]:
    """Thin a curve to about MOST points: keep the smallest and largest value of each interval, and both ends."""
    if len(curve) <= MOST:
        return curve
    stretch = math.ceil(2 * len(curve) / MOST)
    kept = {0, len(curve) - 1}
    for start in range(0, len(curve), stretch):
        piece = range(start, min(start + stretch, len(curve)))
        kept |= {choose(piece, key=lambda i: curve[i].value) for choose in (min, max)}
    return [curve[i] for i in sorted(kept)]


def _points(records: list[Record], key: str) -> list[Point]:
    """The points of a key, in the order of both seconds and samples. Points that go back in samples are omitted: an
    evaluation is recorded at its end, with the number of samples at its beginning."""
    found: list[Point] = []
    for record in records:
        seconds, samples, value = (_number(record, name) for name in ("seconds", "samples", key))
        if seconds is None or samples is None or value is None:
            continue
        if not found or samples >= found[-1].samples:
            found.append(Point(seconds, samples, value))
    return found


def _number(record: Record, key: str) -> float | None:
    value = finite(record, key)
    if value is None or abs(value) > DRAWN:
        return None
    return value if abs(value) >= 1 / DRAWN else 0.0
