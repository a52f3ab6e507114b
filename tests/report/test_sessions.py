"""The sessions of a run: how each ended, which ranks were silent, what the next one trained again."""

import json
from pathlib import Path
from typing import Any

import pytest

from mpitrain.__main__ import main
from mpitrain.report.page import page
from mpitrain.report.runs import ALIVE, KILLED, RunSession, read_run, read_runs, sessions
from tests.report.folders import ended, start, write_run

WAITED = "rank 0: waited 6 s for rank 3 (a heartbeat); run.deadline sets the seconds"


def train(samples: int, seconds: float) -> dict[str, Any]:
    return {"event": "train", "samples": samples, "epoch": samples / 1000, "seconds": seconds, "train_loss": 1.0}


FAILED = [start(ranks=4), train(3000, 30.0), {"event": "failed", "text": WAITED, "silent": [3]}]
DEAD = [start(ranks=3, resumed=True, samples=2000, seconds=20.0), train(5000, 50.0)]
STOPPED = [
    start(resumed=True, samples=5000, seconds=50.0),
    train(6000, 60.0),
    {"event": "end", "samples": 6500, "seconds": 64.0, "exit_reason": "stopped"},
]
GOES_ON = [start(resumed=True, samples=6500, seconds=64.0)]


def test_each_session_and_its_end() -> None:
    assert sessions([*FAILED, *DEAD, *STOPPED, *GOES_ON], running=True) == [
        RunSession(4, 0, 3000, 30.0, WAITED, (3,), repeated=1000),
        RunSession(3, 2000, 5000, 30.0, KILLED),
        RunSession(3, 5000, 6500, 14.0, "stopped by a signal"),
        RunSession(3, 6500, 6500, 0.0, ALIVE),
    ]
    assert sessions([*DEAD], running=False)[-1].end == KILLED
    assert sessions([], running=False) == []


LOST = {"event": "restart", "text": "rank 2 was lost", "samples": 2000, "repeated": 900, "lost_ranks": [[2, 2900]]}


def test_a_restart_says_how_the_session_before_it_ended() -> None:
    """One that left no record itself."""
    told = sessions([start(ranks=4), train(2900, 30.0), LOST, *DEAD], running=True)
    assert told[0] == RunSession(4, 0, 2900, 30.0, "rank 2 was lost", (2,), repeated=900)


def test_the_curves_have_a_mark_where_a_rank_was_lost(tmp_path: Path) -> None:
    """With what was lost; not where a run was only resumed."""
    resumed = start(resumed=True, samples=5000, seconds=50.0)
    records = [start(ranks=4), train(2900, 30.0), LOST, *DEAD, resumed, train(6000, 60.0)]
    text = page(read_runs([write_run(tmp_path / "run", records=records)]), "title")
    found = json.loads(text.partition('<script type="application/json" id="data">')[2].partition("</script>")[0])
    assert found["runs"][0]["resumed"] == [
        {"seconds": 20.0, "samples": 2000, "lost": "rank 2 was lost"},
        {"seconds": 50.0, "samples": 5000, "lost": ""},
    ]


def test_a_session_without_records_but_its_start() -> None:
    """Killed at once; and one that lacks numbers."""
    assert sessions([start(), start(ranks=None, resumed=True)], running=True) == [
        RunSession(3, 0, 0, 0.0, KILLED),
        RunSession(None, 0, 0, 0.0, ALIVE),
    ]


def test_the_report_shows_them(tmp_path: Path) -> None:
    """Of runs that were resumed, failed or killed; what a resume discarded is not in the curves, but in this table."""
    last = [
        start(resumed=True, samples=2000, seconds=20.0),
        train(5000, 50.0),
        {**train(5000, 50.0), "event": "evaluate"},
    ]
    lost = write_run(tmp_path / "lost", records=[*FAILED, *last], summary=ended(last))
    failed = write_run(tmp_path / "failed", records=FAILED)
    killed = write_run(tmp_path / "killed", records=FAILED[:2])
    plain = write_run(tmp_path / "plain", records=last[1:], summary=ended(last[1:]))
    runs = read_runs([lost, failed, killed, plain])
    assert [run.marks for run in runs] == [["resumed"], ["failed"], ["unfinished"], []]
    assert [record["samples"] for record in runs[0].events("train")] == [5000]
    told = page(runs, "title").partition("<h2>Sessions</h2>")[2].partition("</table>")[0]
    rows = [row.split("</th>")[-1] for row in told.partition("<tbody>")[2].split("</tr>") if "<td>" in row]
    cells = [[cell.removesuffix("</td>") for cell in row.split("<td>")[1:]] for row in rows]
    assert cells == [
        ["4", "0 to 3", "30 s", "1", "3", WAITED],
        ["3", "2 to 5", "30 s", "–", "–", "finished"],
        ["4", "0 to 3", "30 s", "–", "3", WAITED],
        ["4", "0 to 3", "30 s", "–", "–", KILLED],
    ]
    assert "Sessions" not in page(runs[3:], "title")


@pytest.mark.parametrize(
    ("records", "pages"),
    [
        ([*FAILED[:-1], {"event": "failed", "text": "net.py: no such module"}], 0),
        (FAILED, 6),  # of 100 s: `launch` may start it again
        ([*FAILED, LOST], 6),
        ([*FAILED[:-1], {"event": "failed", "text": "exit status 1"}, LOST], 6),
    ],
)
def test_a_failed_run_is_watched_where_it_may_start_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, records: list[dict[str, Any]], pages: int
) -> None:
    """That is, after the loss of a rank, or where a restart was said; but not for ever."""
    waited = list[float]()
    monkeypatch.setattr("mpitrain.report.command.time.sleep", waited.append)
    run = write_run(tmp_path / "run", records=records)
    assert not main(["report", str(run), "--watch", "100"])
    assert waited == [100] * pages
    assert "data-watch" not in (run / "report.html").read_text().partition("<head>")[0]


@pytest.mark.parametrize("silent", ["3", [None], ["x"], {"3": 3}, [True]])
def test_silent_ranks_of_a_wrong_type_are_left_out(tmp_path: Path, silent: Any) -> None:
    records = [*FAILED[:2], {"event": "failed", "text": "<b>", "silent": silent}]
    run = read_run(write_run(tmp_path / "run", records=records), "run")
    assert run.sessions[-1].silent == () and "silent" in run.marks[-1]
    assert "<b>" not in page([run], "title")
