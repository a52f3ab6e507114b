"""The timeline of a report: what the first ranks of a traced run did in a typical part of it, as a picture.

A run folder's trace.json may come from anybody.
"""

import math
from collections import defaultdict
from dataclasses import dataclass
from heapq import nlargest
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import msgspec

from mpitrain.errors import naming
from mpitrain.files import read_whole
from mpitrain.report.html import Html, brief, join, run_name, safe
from mpitrain.report.runs import StoredRun
from mpitrain.stopwatch import KINDS

NAME = "trace.json"
RANKS = 8  # most ranks that are shown: the first ones
MOST = 120  # most stretches that are shown of the rank with the most of them
PLACES = 25  # windows among which one is chosen
JOINED, TOUCHING = ("communication", "waiting"), 1e-2  # kinds that are joined, across gaps of so many microseconds
FAR = 1e15  # microseconds: thirty years
WIDTH, HEIGHT = 10_000, 20  # of a rank's row, in SVG units: the row is stretched to the page's width
THIN = 8  # units: the height of a wait
LEAST = 4  # units: the least width that is drawn; a stretch shorter than half a unit is not drawn
TICKS = 5  # most ticks of the axis, besides the one at the left end
LONGEST = 80  # most characters of a text from the trace
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


def timelines(runs: list[StoredRun]) -> Html:
    """A figure for each run that has a trace. Raises BadInput naming a file that is not a trace."""
    parts = [(number, run, part) for number, run in enumerate(runs) if (part := read_part(run.folder)) is not None]
    return join(_figure(number, run, part) for number, run, part in parts)


def _figure(number: int, run: StoredRun, part: TracePart) -> Html:
    drawn = {each.kind for own in part.stretches.values() for each in own if _units(each, part)[1]}
    kinds = [kind for kind in KINDS if kind in drawn]
    keys = ((kind, _box(kind, 0, 14, 14)) for kind in kinds)
    legend = join(Html(f'<li><svg class="key" aria-hidden="true">{box}</svg>{kind}</li>') for kind, box in keys)
    rows = join(_row(rank, own, part) for rank, own in part.stretches.items())
    return Html(
        f'<figure class="timeline"><figcaption>{run_name(number, run.name)}</figcaption><p>{safe(_said(part))}</p>'
        f'<ul class="kinds">{legend}</ul>'
        f'<div class="rows">{rows}<span></span>{_axis(part.ended - part.began)}</div></figure>'
    )


def _said(part: TracePart) -> str:
    """The text above the picture: which part of the training it shows, and in which time."""
    time = "virtual time" if part.about.simulated else "wall clock"
    whose = f"the first {RANKS} of {part.ranks:,} ranks" if part.ranks > RANKS else "all ranks"
    since = "the training" if not part.about.from_sample else f"the session from sample {part.about.from_sample:,} on"
    shown = "The whole of" if part.whole else "A typical part of"
    length, start = brief((part.ended - part.began) / 1e6), brief(max(part.began, 0.0) / 1e6)
    text = f"{shown} {since}, {whose}: {length} ({time}), from {start} after its start. "
    text += "The whole trace is in trace.json, for ui.perfetto.dev."
    text += " It had no room for everything: a row is empty where it left something out." if part.about.dropped else ""
    apart = part.about.clock.startswith("each node")
    return text + (" Clocks of different nodes agree only to some milliseconds." if apart else "")


def _row(rank: int, stretches: list[TraceStretch], part: TracePart) -> Html:
    boxes = []
    for each in stretches:
        x, width = _units(each, part)
        if width:
            boxes.append(_box(each.kind, x, max(width, LEAST), HEIGHT, _told(each)))
    name = _cut(part.names.get(rank) or f"rank {rank}")
    shares = ", ".join(f"{kind} {share:.0%}" for kind, share in part.shares[rank].items())
    return Html(
        f'<span title="{safe(shares)}">{safe(name)}</span><svg role="img" aria-label="{safe(f"{name}: {shares}")}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none">{join(boxes)}</svg>'
    )


def _units(each: TraceStretch, part: TracePart) -> tuple[int, int]:
    """Where a stretch lies in its row, and how wide it is there."""
    scale = WIDTH / (part.ended - part.began)
    x, end = (round((min(max(at, part.began), part.ended) - part.began) * scale) for at in (each.began, each.ended))
    return x, end - x


def _box(kind: str, x: int, width: int, height: int, title: str = "") -> Html:
    high = THIN * height // HEIGHT if kind == "waiting" else height
    told = f"><title>{safe(title)}</title></rect>" if title else "/>"
    return Html(f'<rect class="{kind}" x="{x}" y="{(height - high) // 2}" width="{width}" height="{high}"{told}')


def _told(each: TraceStretch) -> str:
    told = each.longest.args
    whom = ", ".join(map(str, told.whom[:RANKS])) + (", …" if len(told.whom) > RANKS else "")
    what = f": {_cut(told.what)}" if told.what else ""
    ranks = f" (rank{'s' * (len(told.whom) > 1)} {whom})" if whom else ""
    parts = f" in {each.parts} parts, the longest" if each.parts > 1 else ""
    return f"{each.kind} {brief((each.ended - each.began) / 1e6)}{parts}{what}{ranks}"


def _axis(length: float) -> Html:
    """An axis of `length` microseconds; its ticks count from the picture's left end."""
    least = length / TICKS
    power = 10.0 ** math.floor(math.log10(least))
    step = min(factor * power for factor in (1, 2, 5, 10) if factor * power >= least)
    ticks = ""
    for tick in range(math.floor(length / step) + 1):
        at = 100 * tick * step / length
        anchor = "start" if at < 5 else "end" if at > 95 else "middle"  # so that the text stays within the picture
        ticks += f'<line class="axis" x1="{at:.2f}%" x2="{at:.2f}%" y2="5"/>'
        ticks += f'<text x="{at:.2f}%" y="18" text-anchor="{anchor}">{brief(tick * step / 1e6)}</text>'
    return Html(f'<svg class="ticks" aria-hidden="true">{ticks}</svg>')


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
