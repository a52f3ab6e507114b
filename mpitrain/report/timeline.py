"""The timeline of a report: what the first ranks of a traced run did in a typical part of it, as a picture."""

import math

from mpitrain.report.html import Html, brief, join, run_name, safe
from mpitrain.report.runs import StoredRun
from mpitrain.report.traces import RANKS, TracePart, TraceStretch, read_part
from mpitrain.stopwatch import KINDS

WIDTH, HEIGHT = 10_000, 20  # of a rank's row, in SVG units: the row is stretched to the page's width
THIN = 8  # units: the height of a wait
LEAST = 4  # units: the least width that is drawn; a stretch shorter than half a unit is not drawn
TICKS = 5  # most ticks of the axis, besides the one at the left end
LONGEST = 80  # most characters of a text from the trace


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
