"""The timeline of a report, from traces that are written by hand."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mpitrain.__main__ import main
from mpitrain.report.timeline import MOST, TraceEvent, TraceStretch, joined, window

from .folders import write_run

Record = dict[str, Any]


def event(rank: int, name: str, ts: float, dur: float, **arguments: Any) -> Record:
    """As a trace has it."""
    return {"name": name, "ph": "X", "pid": rank, "tid": 0, "ts": ts, "dur": dur, "args": arguments}


def traced(folder: Path, content: object) -> Path:
    """A run folder with this trace.json."""
    run = write_run(folder / "run")
    text = content if isinstance(content, str | bytes) else json.dumps(content)
    (run / "trace.json").write_bytes(text.encode() if isinstance(text, str) else text)
    return run


def page(folder: Path, events: list[Record], **about: Any) -> str:
    """The report's timeline."""
    run = traced(folder, {"traceEvents": events, "otherData": about})
    assert main(["report", str(run)]) == 0
    return (run / "report.html").read_text().partition("<h2>Timeline</h2>")[2].partition("</section>")[0]


def boxes(html: str) -> list[list[tuple[str, int, int]]]:
    """Kind, place and width of what each rank's row shows, in ten-thousandths of it."""
    rows = re.findall(r'<svg role="img".*?</svg>', html)
    drawn = re.compile(r'<rect class="(\w+)" x="(\d+)" y="\d+" width="(\d+)"')
    return [[(kind, int(x), int(width)) for kind, x, width in drawn.findall(row)] for row in rows]


def test_a_picture_by_hand(tmp_path: Path) -> None:
    """100 µs: rank 0 computes for 60 and waits in two parts; rank 1 computes, updates for a while too short to see, and
    does what the program has no name for."""
    first = [
        event(0, "computing", 0, 60),
        event(0, "waiting", 60, 10),
        event(0, "waiting", 70, 30, what="it", whom=[1]),
    ]
    second = [event(1, "computing", 0, 50), event(1, "rest", 50, 0.001), event(1, "sleeping", 50.001, 49.999)]
    html = page(tmp_path, first + second, simulated=True)
    assert boxes(html) == [
        [("computing", 0, 6000), ("waiting", 6000, 4000)],
        [("computing", 0, 5000), ("rest", 5000, 5000)],
    ]
    assert "<title>waiting 40 µs in 2 parts, the longest: it (rank 1)</title>" in html
    assert "The whole of the training, all ranks: 100 µs (virtual time), from 0 s after its start." in html
    assert "rank 0: computing 60%, waiting 40%" in html
    assert re.findall(r"<text [^>]*>([^<]*)<", html) == ["0 s", "20 µs", "40 µs", "60 µs", "80 µs", "100 µs"]


def test_the_first_eight_ranks_are_shown(tmp_path: Path) -> None:
    html = page(
        tmp_path, [event(rank, "computing", 2e6, 1e6) for rank in range(12)], from_sample=1438, dropped={"0": 3}
    )
    assert len(boxes(html)) == 8
    said = "the session from sample 1,438 on, the first 8 of 12 ranks: 1 s (wall clock), from 2 s after its start"
    assert said in html and "a row is empty where it left something out" in html


def test_shares_are_of_all_that_a_rank_did(tmp_path: Path) -> None:
    """Of the 900 gradients of rank 1, which are too many to be drawn, too."""
    slow = [event(0, "computing", 100 * n, 100) for n in range(1000)]
    quick = [event(1, "computing", 44_000 + 10 * n, 10) for n in range(900)]
    html = page(tmp_path, slow + quick)
    assert "12 ms (wall clock), from 44 ms after its start" in html
    assert "rank 1: computing 75%" in html and len(boxes(html)[1]) == 4 * MOST


def stretches(lengths: list[float]) -> list[TraceStretch]:
    """Of these lengths, one after another."""
    return [
        TraceStretch("computing", sum(lengths[:n]), sum(lengths[: n + 1]), TraceEvent()) for n in range(len(lengths))
    ]


def test_the_part_shown_is_of_median_length() -> None:
    """Slow at first, and once in between: most windows have 2 µs for each stretch."""
    lengths = [20.0] * 200 + [2.0] * 400 + [1000.0] + [2.0] * 400
    began, ended = window(stretches(lengths))
    assert ended - began == pytest.approx(2.0 * MOST) and began >= 20.0 * 200
    assert window(stretches([1.0, 2.0])) == (0.0, 3.0)


def test_no_part_has_a_gap() -> None:
    """The middle was left out: every window across it takes longer than the others, and there are more of them."""
    found = stretches([2.0] * (MOST + 10) * 2)
    for each in found[MOST + 10 :]:
        each.began, each.ended = each.began + 5000, each.ended + 5000
    began, ended = window(found)
    assert ended - began == pytest.approx(2.0 * MOST)


def test_waits_are_joined_and_gradients_are_not() -> None:
    names = ["computing", "computing", "waiting", "waiting", "communication", "waiting"]
    events = [TraceEvent(name, "X", 0, 10.0 * place, 10.0) for place, name in enumerate(names)]
    found = [(each.kind, each.began, each.ended, each.parts) for each in joined(events)]
    assert found == [
        ("computing", 0, 10, 1),
        ("computing", 10, 20, 1),
        ("waiting", 20, 40, 2),
        ("communication", 40, 50, 1),
        ("waiting", 50, 60, 1),
    ]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[" * 100_000,
        "{}",
        "[]",
        '{"traceEvents": 3}',
        {"traceEvents": [{"ph": "X", "pid": "x"}]},
        {"traceEvents": [{"ph": "X", "pid": -1}]},
        {"traceEvents": [{"ph": "X", "ts": "now"}]},
        {"traceEvents": [{"ph": "X", "ts": 1e300, "dur": 1e300}]},
        '{"traceEvents": [{"ph": "X", "ts": 1e999}]}',
        {"traceEvents": [{"ph": "X", "dur": -1}]},
        {"traceEvents": [{"args": {"whom": [10**400]}}]},
        {"traceEvents": [{"name": "process_name", "args": {"name": ["x"]}}]},
        {"traceEvents": [], "otherData": {"from_sample": "x"}},
        b'{"traceEvents": [{"name": "\xff"}]}',
    ],
)
def test_what_is_no_trace_is_a_line(content: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = traced(tmp_path, content)
    assert main(["report", str(run)]) == 2
    told = capsys.readouterr()
    assert told.err.count("\n") == 1 and "trace.json: not a trace: " in told.err and not (run / "report.html").exists()


@pytest.mark.parametrize(
    "events",
    [
        [],
        [{"ph": "X", "ts": 1e14, "dur": 1e-9}],
        [event(0, "computing", -5, 1e-9)],
        [event(0, "computing", 0, 9e14), event(1, "waiting", 1, 1e-12)],
        [event(0, "computing", place % 7, 5) for place in range(1000)],
    ],
)
def test_any_events_have_a_page(events: list[Record], tmp_path: Path) -> None:
    """None, some too short, some over one another."""
    for row in boxes(page(tmp_path, events)):
        assert all(0 <= x <= 10_000 and 0 < width <= 10_000 for _, x, width in row)


def test_a_run_without_a_trace_has_no_timeline(tmp_path: Path) -> None:
    assert main(["report", str(write_run(tmp_path / "run"))]) == 0
    assert "Timeline" not in (tmp_path / "run" / "report.html").read_text()
