"""Check the types of the values of summaries and records before a report calculates with them."""

import json
import math
from typing import TypeGuard

from mpitrain.errors import printable
from mpitrain.files import Record
from mpitrain.monitoring.figures import FIGURES
from mpitrain.stopwatch import KINDS

#: Numeric keys that a report uses, in addition to those that end in one of SUFFIXES.
NUMBERS = frozenset(
    {
        *("ranks", "workers", "epoch", "seconds", "samples", "samples_per_second", "updates", "server_busy_seconds"),
        *("staleness_mean", "staleness_max", "bytes_sent", "bytes_received", "bytes_exchanged", "messages_sent"),
        *("resumed_samples", "resumed_seconds", "communication_hidden", *FIGURES),
    }
)
SUFFIXES = ("_loss", "_error")
TEXTS = frozenset({"algorithm", "exit_reason"})
COUNTS = {"staleness_histogram": "ages", "bytes_by_kind": "kinds"}  # tables of counts, and the kind of their keys
LARGEST = 1 << 63  # a larger integer cannot come from this program's counters
OLDEST = 6  # most digits of a staleness


def fault(key: str, value: object) -> str:
    """What is wrong with a value, such as `seconds = "x": expected a number`; "" if it is valid, as null always is."""
    if value is None:
        return ""
    expected = ""
    if (key in NUMBERS or key.endswith(SUFFIXES)) and not is_number(value):
        expected = "a number"
    elif key in TEXTS and not isinstance(value, str):
        expected = "a text"
    elif key in COUNTS and not (isinstance(value, dict) and all(_counted(key, *item) for item in value.items())):
        expected = f"a table of {COUNTS[key]} and counts"
    elif key == "time" and not (isinstance(value, list) and all(map(_timed, value))):
        expected = "each rank's seconds by kind"
    elif key == "silent" and not (isinstance(value, list) and all(map(is_number, value))):
        expected = "a list of ranks"
    return f"{printable(key)} = {_short(value)}: expected {expected}" if expected else ""


def is_number(value: object) -> TypeGuard[float]:
    """Whether the value is a finite number; True and False are not numbers."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < LARGEST


def finite(record: Record, key: str) -> float | None:
    """The value of a key if it is a finite number."""
    value = record.get(key)
    return value if is_number(value) else None


def _counted(key: str, name: str, count: object) -> bool:
    age = key != "staleness_histogram" or (name.isascii() and name.isdigit() and len(name) <= OLDEST)
    return age and is_number(count) and count >= 0


def _timed(entry: object) -> bool:
    """Whether this is a rank's entry of `time`."""
    keys = ("rank", *KINDS)
    return isinstance(entry, dict) and all(is_number(entry.get(key)) and entry[key] >= 0 for key in keys)


def _short(value: object) -> str:
    try:
        text = json.dumps(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, or deeply nested
        return f"a huge {type(value).__name__}"
    return text if len(text) <= 40 else f"{text[:40]}…"
