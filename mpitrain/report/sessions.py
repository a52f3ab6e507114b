"""The sessions of a run: each start of the program, on how many ranks, how far it came, and how it ended."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from mpitrain.files import Record
from mpitrain.report.values import finite

ENDS = {"finished": "finished", "stopped": "stopped by a signal", "diverged": "diverged", "incomplete": "incomplete"}
KILLED, ALIVE = "killed, left no record", "still running, or killed"


@dataclass(frozen=True)
class RunSession:
    """From a start to the next one. `repeated`: samples that it had recorded and that the next one trained again."""

    ranks: int | None
    began: float  # samples of the run
    ended: float
    seconds: float
    end: str
    silent: tuple[int, ...] = ()  # the ranks that were named as silent
    repeated: float = 0.0

    @property
    def quiet(self) -> bool:
        """Whether there is nothing to say about it: it finished, or goes on."""
        return self.end in (ENDS["finished"], ALIVE)


def sessions(records: list[Record]) -> list[RunSession]:
    """Those of a run, from all its records, those that a resume discarded included."""
    parts = list(_parts(records))
    next_starts = [part[0] for part in parts[1:]]
    found = [_session(part, KILLED, finite(then, "samples")) for part, then in zip(parts, next_starts, strict=False)]
    return found + [_session(part, ALIVE, None) for part in parts[-1:]]


def _parts(records: list[Record]) -> Iterator[list[Record]]:
    """The records from each start to the next."""
    starts = [place for place, record in enumerate(records) if record["event"] == "start"]
    for first, end in pairwise([*starts, len(records)]):
        yield records[first:end]


def _session(records: list[Record], unsaid: str, resumed: float | None) -> RunSession:
    start, ended = records[0], next((each for each in records if each["event"] in ("end", "failed")), None)
    began = finite(start, "samples") or 0.0
    samples = max((finite(each, "samples") or 0.0 for each in records), default=began)
    seconds = max((finite(each, "seconds") or 0.0 for each in records), default=0.0) - (finite(start, "seconds") or 0.0)
    end, silent = unsaid, tuple[int, ...]()
    if ended is not None and ended["event"] == "end":
        end = ENDS.get(str(ended.get("exit_reason")), str(ended.get("exit_reason")))
    elif ended is not None:
        end = str(ended.get("text"))
        silent = tuple(ended.get("silent") or ())  # type: ignore[arg-type]  # was checked
    ranks = finite(start, "ranks")
    repeated = 0.0 if resumed is None else max(samples - resumed, 0.0)
    return RunSession(None if ranks is None else int(ranks), began, samples, seconds, end, silent, repeated)
