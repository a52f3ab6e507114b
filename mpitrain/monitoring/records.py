"""The record of a run: one JSON object a line in metrics.jsonl, and summary.json at the end."""

import errno
import io
import json
import math
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from mpitrain.errors import BadInput
from mpitrain.monitoring.tensorboard import EventFile

LONGEST_LINE = 1 << 20  # bytes


class Metrics:
    """Appends records to a file; each is on disk's way as soon as it is written. `events` gets them too.

    A record that the disk refuses is lost, and said to `warn`, the first of several; the training is worth more.
    """

    def __init__(self, path: Path, events: EventFile | None = None, warn: Callable[[str], None] = print) -> None:
        self._path, self._events, self._warn = path, events, warn
        self._refused = False
        try:
            self._file = path.open("ab+", buffering=0)
            _drop_cut_line(self._file)
        except OSError as error:
            raise BadInput(f"{path}: {error.strerror}") from error

    def write(self, event: str, **fields: Any) -> None:
        """One record. Numbers that JSON has not (nan, inf) are written as null."""
        fields = {key: _finite(value) for key, value in fields.items()}
        line = json.dumps({"event": event, **fields}).encode() + b"\n"
        try:
            self._append(line)
            if self._events is not None:
                self._events.write(event, fields)
            self._refused = False
        except OSError as error:
            if not self._refused:
                self._warn(f"warning: {self._path}: {error.strerror}; the training goes on without these records")
            self._refused = True

    def _append(self, line: bytes) -> None:
        size = self._file.seek(0, os.SEEK_END)
        if self._file.write(line) != len(line):
            self._file.truncate(size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def last_record(path: Path, event: str) -> dict[str, Any] | None:
    """The last record of this kind in a metrics.jsonl; None where there is none."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        if event.encode() in line:
            with suppress(ValueError, RecursionError):
                found = json.loads(line)
                if isinstance(found, dict) and found.get("event") == event:
                    return found
    return None


def _drop_cut_line(file: io.FileIO) -> None:
    """Drop a last line without an end, which a kill has left."""
    first = max(file.seek(0, os.SEEK_END) - LONGEST_LINE, 0)
    file.seek(first)
    file.truncate(first + file.readall().rfind(b"\n") + 1)


def summary_text(fields: dict[str, Any]) -> str:
    """The summary as indented JSON."""
    return json.dumps({key: _finite(value) for key, value in fields.items()}, indent=2) + "\n"


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def errors(results: dict[str, Any]) -> dict[str, float]:
    """The errors by part, for a reader: "test", "dev", …; "test" is left out where it stands for "test …"."""
    named = {
        key.removesuffix("_error").replace("_", " "): value for key, value in results.items() if key.endswith("_error")
    }
    elsewhere = [value for name, value in named.items() if name.startswith("test ")]
    if named.get("test") in elsewhere:
        del named["test"]
    return {name: value for name, value in named.items() if value is not None}
