"""Read the trace.json of a run folder, which may come from anybody, and choose the part of it that a report shows."""

from collections import defaultdict
from dataclasses import dataclass
from heapq import nlargest
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import msgspec

from mpitrain.errors import naming
from mpitrain.files import read_whole
from mpitrain.stopwatch import KINDS

NAME = "trace.json"
RANKS = 8  # most ranks that are shown: the first ones
MOST = 120  # most stretches that are shown of the rank with the most of them
PLACES = 25  # windows among which one is chosen
JOINED, TOUCHING = ("communication", "waiting"), 1e-2  # kinds that are joined, across gaps of so many microseconds
FAR = 1e15  # microseconds: thirty years


Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
Time = Annotated[float, msgspec.Meta(gt=-FAR, lt=FAR)]
Duration = Annotated[float, msgspec.Meta(ge=0, lt=FAR)]


class Arguments(msgspec.Struct, frozen=True):
    """An event's arguments: a process's `name`, or `what` is done or waited for and the ranks `whom` it concerns."""

    name: str = ""
    what: str = ""
    whom: list[Number] = []


class TraceEvent(msgspec.Struct, frozen=True):
    """One event: something that took `dur` microseconds, an instant, or a name."""

    name: str = ""
    ph: str = ""
    pid: Number = 0
    ts: Time = 0.0
    dur: Duration = 0.0
    args: Arguments = Arguments()


class TraceInfo(msgspec.Struct, frozen=True):
    """What the trace says of itself; it begins at `from_sample` samples of the run."""

    simulated: bool = False
    clock: str = ""
    from_sample: Number = 0
    dropped: dict[str, Number] = {}  # events of each rank that the trace had no room for


@dataclass
class TraceStretch:
    """A stretch of time of one kind, in microseconds since the training began. Events of one of the kinds JOINED that
    follow one another make one stretch of several `parts`; `longest` is the longest of these."""

    kind: str
    began: float
    ended: float
    longest: TraceEvent
    parts: int = 1


class _File(msgspec.Struct, frozen=True):
    traceEvents: list[TraceEvent]
    otherData: TraceInfo = TraceInfo()


@dataclass(frozen=True)
class TracePart:
    """What the first ranks did from `began` to `ended`, in microseconds since the training began."""

    about: TraceInfo
    ranks: int  # of the training
    names: dict[int, str]
    stretches: dict[int, list[TraceStretch]]  # by rank: the longest ones, in order of time
    shares: dict[int, dict[str, float]]  # by rank: the fraction of this part's time that each kind takes
    began: float
    ended: float
    whole: bool  # whether this part is the whole trace


def read_part(folder: Path) -> TracePart | None:
    """A typical part of the run's trace; None without a trace, or if nothing in it took any time. Raises BadInput
    naming the file."""
    path = folder / NAME
    with naming(path):
        if not path.exists():
            return None
        content = read_whole(path)
    with naming(f"{path}: not a trace", msgspec.DecodeError, ValueError, RecursionError):
        found = msgspec.json.decode(content, type=_File)
    every: dict[int, list[TraceEvent]] = defaultdict(list)
    for event in found.traceEvents:
        if event.ph == "X" and event.ts + event.dur > event.ts:
            every[event.pid].append(event)
    names = {event.pid: event.args.name for event in found.traceEvents if event.name == "process_name"}
    shown = {rank: joined(sorted(every[rank], key=lambda event: event.ts)) for rank in sorted(every)[:RANKS]}
    if not shown:
        return None
    most = max(shown.values(), key=len)
    began, ended = window(most)
    within, shares = {}, {}
    for rank, own in shown.items():
        inside = [each for each in own if each.began < ended and each.ended > began]
        longest = nlargest(4 * MOST, inside, lambda each: each.ended - each.began)  # as many as can be seen
        within[rank] = sorted(longest, key=lambda each: each.began)
        times = dict.fromkeys(KINDS, 0.0)
        for each in inside:
            times[each.kind] += min(each.ended, ended) - max(each.began, began)
        shares[rank] = {kind: time / (ended - began) for kind, time in times.items() if time}
    return TracePart(found.otherData, len(every), names, within, shares, began, ended, whole=len(most) <= MOST)


def joined(events: list[TraceEvent]) -> list[TraceStretch]:
    """Join the events of a rank, which are in order of time, to stretches."""
    found: list[TraceStretch] = []
    for event in events:
        kind, last = event.name if event.name in KINDS else "rest", found[-1] if found else None
        if last is not None and last.kind == kind and kind in JOINED and event.ts - last.ended < TOUCHING:
            last.ended, last.parts = event.ts + event.dur, last.parts + 1
            last.longest = max(last.longest, event, key=lambda each: each.dur)
        else:
            found.append(TraceStretch(kind, event.ts, event.ts + event.dur, event))
    return found


def window(stretches: list[TraceStretch]) -> tuple[float, float]:
    """The beginning and end of a typical window: of PLACES windows of MOST stretches, spread evenly, the one of median
    length. Windows with a gap, where events were left out, are taken only if all have gaps."""
    last = len(stretches) - MOST
    firsts = sorted({round(place * max(last, 0) / (PLACES - 1)) for place in range(PLACES)})
    places = [stretches[first : first + MOST] for first in firsts]
    whole = [place for place in places if all(b.began - a.ended <= TOUCHING for a, b in pairwise(place))] or places
    lengths = sorted((place[-1].ended - place[0].began, place[0].began) for place in whole)
    length, began = lengths[(len(lengths) - 1) // 2]
    return began, began + length
