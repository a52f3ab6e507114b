"""The records of a run: a JSON object per line in metrics.jsonl, and summary.json at the end."""

import errno
import io
import json
import math
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mpitrain.errors import BadInput, first_line, naming, printable
from mpitrain.files import Record, read_whole, write_below
from mpitrain.monitoring.tensorboard import EventFile
from mpitrain.stopwatch import shares

LONGEST_LINE = 1 << 20  # bytes
Callback = Callable[[Record], BaseException | None]  #: calls the user's function, and returns what it has raised


@dataclass(frozen=True)
class Figure:
    """`how`: the way to combine values over time and ranks; "newest": the mean of each rank's newest value.

    The report plots it under its `title`, if it has one, as a "number", "percent" or "bytes", initially on a
    logarithmic scale if `log`.
    """

    how: Literal["sum", "mean", "maximum", "newest"]
    title: str = ""
    form: str = "number"
    log: bool = False


FIGURES = {
    "density": Figure("mean", "Share of elements sent", "percent", log=True),
    "threshold": Figure("newest", "Threshold", log=True),
    "residual_norm": Figure("newest", "Norm of the residual"),
    "compression_ratio": Figure("mean", "Compression: dense bytes per byte sent", log=True),
    "bytes_per_minibatch": Figure("mean", "Bytes sent per minibatch", "bytes", log=True),
    "bits_per_element": Figure("mean", "Bits per element sent", log=True),
    "emissions_skipped": Figure("sum"),
    "gradient_zeros_mean": Figure("mean", "Share of exact zeros in a rank's gradient", "percent"),
    "gradient_norm": Figure("mean", "Norm of a rank's gradient", log=True),
    "gradient_cosine_mean": Figure("mean", "Cosine between what two workers sent"),
}


@dataclass(eq=False)
class Metrics:
    """Appends records to a file, without buffering, and to `events`; the user's `callback` is called with each.

    If a record cannot be written, it is lost and the training continues; the first of several faults is reported by
    `warn`, as is the first exception of `callback`.
    """

    path: Path
    events: EventFile | None = None
    warn: Callable[[str], None] = print
    callback: Callback | None = None

    def __post_init__(self) -> None:
        self._refused = self._raised = False
        with naming(self.path):
            self._file = io.FileIO(_own(self.path, os.O_RDWR | os.O_CREAT), "a+")
            _drop_cut_line(self._file)

    def write(self, event: str, **fields: object) -> None:
        """Write a record. Numbers that JSON cannot represent (nan, inf) are written as null."""
        fields = {key: or_null(value) for key, value in fields.items()}
        try:
            self._append(_line(event, fields))
            if self.events is not None:
                self.events.write(event, fields)
            self._refused = False
        except OSError as error:
            if not self._refused:
                self.warn(f"warning: {self.path}: {error.strerror}; the training goes on without these records")
            self._refused = True
        raised = None if self.callback is None else self.callback({"event": event, **fields})
        if raised is not None and not self._raised:
            self._raised, why = True, printable(f"{type(raised).__name__}: {first_line(raised)}")
            self.warn(f"warning: run.callback: {why}; the training goes on, and further exceptions are not said")

    def move(self, path: Path) -> None:
        """Append to the file at `path` from now on: the same file, moved, or a copy of it if there is none."""
        with suppress(OSError, BadInput):
            if not path.exists():
                self._file.seek(0)
                write_below(path.parent, path.name, self._file.readall())
                self._file = io.FileIO(_own(path, os.O_RDWR), "a+")
            self.path = path

    def restore(self) -> None:
        """Write the file again if it was deleted, but not its folder; as far as that is possible."""
        with suppress(OSError):  # such as a stale handle, if another node has deleted it
            if not os.fstat(self._file.fileno()).st_nlink:
                self.move(self.path)

    def _append(self, line: bytes) -> None:
        size = self._file.seek(0, os.SEEK_END)
        if self._file.write(line) != len(line):
            self._file.truncate(size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def append(path: Path, event: str, **fields: object) -> None:
    """Append a record from any rank to an existing metrics.jsonl, as far as that is possible."""
    with suppress(OSError), io.FileIO(_own(path, os.O_WRONLY), "a") as file:
        file.write(_line(event, fields))


def _own(path: Path, flags: int) -> int:
    """A handle to append to a file in the run folder. Raises OSError for a link, and for what is not a regular file."""
    if path.is_symlink():
        raise OSError("is a link to another file")
    handle = os.open(path, flags | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError("not a regular file")
    return handle


def _line(event: str, fields: Mapping[str, object]) -> bytes:
    return json.dumps({"event": event, **fields}).encode() + b"\n"


def records_of(path: Path, *events: str) -> Iterator[Record]:
    """The records of these kinds in a metrics.jsonl, the last one first."""
    content = b""
    with suppress(OSError):
        content = read_whole(path)
    likely = (line for line in reversed(content.splitlines()) if any(event.encode() in line for event in events))
    yield from (found for found in map(record_in, likely) if found and found["event"] in events)


def record_in(line: str | bytes) -> Record | None:
    """The record that a line of a metrics.jsonl holds; None if it holds none."""
    with suppress(ValueError, RecursionError):
        found = json.loads(line)
        if isinstance(found, dict) and isinstance(found.get("event"), str):
            return found
    return None


def _drop_cut_line(file: io.FileIO) -> None:
    """Remove an incomplete last line, which is left when a run is killed."""
    first = max(file.seek(0, os.SEEK_END) - LONGEST_LINE, 0)
    file.seek(first)
    file.truncate(first + file.readall().rfind(b"\n") + 1)


def summary_text(fields: Record) -> str:
    """Format the summary as indented JSON."""
    return json.dumps({key: or_null(value) for key, value in fields.items()}, indent=2) + "\n"


def bottlenecks(summary: Mapping[str, Any]) -> list[str]:
    """What slows a training down, as clauses: workers that wait for more than a third of their time, gradients that are
    more than 4 updates old, a link or a server that is busy for more than 90% of the time."""
    waiting = shares([each for each in summary.get("time", ()) if each["computing"]])["waiting"]
    found, old = [f"workers wait {waiting:.0%} of their time"] * (waiting > 1 / 3), summary.get("staleness_mean") or 0.0
    found += [f"gradients are {old:.1f} updates old"] * (old > 4)
    seconds = (summary.get("seconds") or 0.0) - (summary.get("resumed_seconds") or 0.0)  # as busy ones
    for key, what in (("link_busy_seconds", "a node's link"), ("server_busy_seconds", "the server")):
        busy = (summary.get(key) or 0.0) / max(seconds, 1e-9)
        found += [f"{what} is busy {min(busy, 1):.0%} of the time"] * (busy > 0.9)
    return found


def or_null(value: object) -> object:
    """The value, or None for a number that JSON cannot represent."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def merit_of(results: Mapping[str, object]) -> str:
    """The figure of merit by which these results of an evaluation are compared: "error", for text "bits_per_byte",
    without classes "loss", or a metric of the user's. Less is better."""
    named = results.get("merit")
    return named if isinstance(named, str) else "error"


def by_part(results: Mapping[str, object]) -> dict[str, float]:
    """The figure of merit by the name of the data: "test", "dev", "test noisy", …; "test" is omitted if it repeats
    "test …", whose loss is then the same, too."""
    suffix = f"_{merit_of(results)}"
    parts = ("dev_", "test_", "train_subset_")  # other results may end in the name of a metric, such as "seconds"
    named = {
        key.removesuffix(suffix).replace("_", " "): value
        for key, value in results.items()
        if key.endswith(suffix) and key.startswith(parts) and isinstance(value, int | float)
    }

    def measured(name: str) -> tuple[object, object]:
        return named.get(name), results.get(f"{name.replace(' ', '_')}_loss")

    if any(name.startswith("test ") and measured(name) == measured("test") for name in named):
        del named["test"]
    return named


def rate_text(rate: float) -> str:
    """Format a number a second: whole from ten on, two significant digits below, as of a large network."""
    return f"{rate:,.0f}" if rate >= 9.95 else f"{rate:.2g}"


def shown(merit: str) -> str:
    """The name of a figure of merit as it is printed, such as "bits a byte"."""
    return {"bits_per_byte": "bits a byte"}.get(merit, merit.replace("_", " "))


def merits(results: Mapping[str, object]) -> list[tuple[str, str]]:
    """The figures of merit of all parts as printed: "test error" and "1.95%", for text "test bits a byte"."""
    merit = merit_of(results)
    form = ".2%" if merit == "error" else ".4f"
    return [(f"{name} {shown(merit)}", format(value, form)) for name, value in by_part(results).items()]
