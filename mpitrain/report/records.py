"""Read the records and summary of a run, which may come from anybody: each value is checked before a report uses it."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec

from mpitrain.errors import BadInput, naming, printable, some
from mpitrain.files import Record, read_text
from mpitrain.monitoring.records import FIGURES, record_in
from mpitrain.stopwatch import KINDS

Number = Annotated[float, msgspec.Meta(ge=-sys.float_info.max, le=sys.float_info.max)]  # finite, no bool
Count = Annotated[float, msgspec.Meta(ge=0, le=sys.float_info.max)]
Name = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z_][A-Za-z0-9_]{0,63}\Z")]
Age = Annotated[str, msgspec.Meta(pattern=r"\A[0-9]{1,6}\Z")]
RankSeconds = msgspec.defstruct("RankSeconds", [(key, Count) for key in ("rank", *KINDS)])

NUMBER = (Number, "a number")
#: The types of the values that a report uses, and how messages name them. Other keys with one of the PREFIXES or
#: SUFFIXES are results of evaluations: numbers, too.
TYPES: dict[str, tuple[Any, str]] = {
    **dict.fromkeys(("ranks", "workers", "epoch", "seconds", "samples", "samples_per_second", "updates"), NUMBER),
    **dict.fromkeys(("staleness_mean", "staleness_max", "bytes_sent", "bytes_received", "bytes_exchanged"), NUMBER),
    **dict.fromkeys(("messages_sent", "server_busy_seconds", "resumed_samples", "resumed_seconds", "restarts"), NUMBER),
    **dict.fromkeys(("link_busy_seconds", "communication_hidden", *FIGURES), NUMBER),
    **dict.fromkeys(("algorithm", "exit_reason"), (str, "a text")),
    "merit": (Name, "a name"),
    "staleness_histogram": (dict[Age, Count], "a table of ages and counts"),
    "bytes_by_kind": (dict[str, Count], "a table of kinds and counts"),
    "time": (list[RankSeconds], "each rank's seconds by kind"),  # type: ignore[valid-type]  # made above
    "silent": (list[Number], "a list of ranks"),
    "lost_ranks": (list[tuple[Number, Number]], "a list of ranks and samples"),
}
PREFIXES, SUFFIXES = ("dev_", "test_", "train_"), ("_loss", "_error")


def fault(key: str, value: object) -> str:
    """What is wrong with a value, such as `seconds = "x": expected a number`; "" if it is valid, as null always is."""
    kind, expected = TYPES.get(key) or (NUMBER if key.startswith(PREFIXES) or key.endswith(SUFFIXES) else (object, ""))
    try:
        msgspec.convert(value, kind | None)
    except msgspec.ValidationError:
        return f"{printable(key)} = {_short(value)}: expected {expected}"
    return ""


def finite(record: Record, key: str) -> float | None:
    """The value of a key, which was checked to be a finite number; None if the record has no number there."""
    value = record.get(key)
    return value if isinstance(value, int | float) else None


def read_records(path: Path) -> tuple[list[Record], list[str]]:
    """The valid records of a metrics.jsonl, and remarks on what was left out: invalid lines, such as one truncated when
    the run was killed, and values of the wrong type."""
    with naming(path):
        lines = read_text(path, errors="replace").splitlines()
    records = [record for record in map(record_in, lines) if record is not None]
    if lines and not records:
        raise BadInput(f"{path}: no line of it is a record")
    broken = len(lines) - len(records)
    marks = [some(broken, "unreadable line")] if broken else []
    wrong = [(record, key, said) for record in records for key in record if (said := fault(key, record[key]))]
    for record, key, _ in wrong:
        del record[key]
    more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    return records, [*marks, *(f"{path.name}: {said}{more}" for _, _, said in wrong[:1])]


def read_summary(path: Path) -> Record | None:
    """The summary.json, if it exists. Raises BadInput naming the file and a key with a value of the wrong type."""
    with naming(path), naming(f"{path}: not JSON", ValueError, RecursionError):
        if not path.exists():
            return None
        found = json.loads(read_text(path))
    if not isinstance(found, dict):
        raise BadInput(f"{path}: not a JSON object")
    for said in (fault(key, value) for key, value in found.items()):
        if said:
            raise BadInput(f"{path}: {said}")
    return found


def _short(value: object) -> str:
    try:
        text = json.dumps(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, or deeply nested
        return f"a huge {type(value).__name__}"
    return text if len(text) <= 40 else f"{text[:40]}…"
