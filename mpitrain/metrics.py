"""The record of a run: one JSON object a line in metrics.jsonl, and summary.json at the end."""

import json
import math
import os
from pathlib import Path
from typing import Any, TextIO

from mpitrain.errors import BadInput
from mpitrain.tensorboard import EventFile


class Metrics:
    """Appends records to a file; each is on disk's way as soon as it is written. `events` gets them too."""

    def __init__(self, path: Path, events: EventFile | None = None) -> None:
        self._path, self._events = path, events
        try:
            self._file: TextIO = path.open("a", encoding="utf-8")
        except OSError as error:
            raise BadInput(f"{path}: {error.strerror}") from error

    def write(self, event: str, **fields: Any) -> None:
        """One record. Numbers that JSON has not (nan, inf) are written as null."""
        fields = {key: _finite(value) for key, value in fields.items()}
        record = {"event": event, **fields}
        try:
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()
        except OSError as error:
            raise BadInput(f"{self._path}: {error.strerror}") from error
        if self._events is not None:
            self._events.write(event, fields)


def write_whole(path: Path, text: str) -> None:
    """Write a file under a temporary name and rename it. Raises BadInput naming it when the disk refuses."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise BadInput(f"{path}: {error.strerror}") from error


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
