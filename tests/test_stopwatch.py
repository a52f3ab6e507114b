"""Where a rank's time goes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mpitrain.__main__ import main
from mpitrain.stopwatch import KINDS, Stopwatch, shares, shares_text


def test_an_inner_kind_interrupts_the_outer_one() -> None:
    """By hand: 1 s of rest, 2 of computing, within it 4 of waiting, 8 of computing again, 16 of rest."""
    now = 100.0
    watch = Stopwatch(lambda: now)
    now += 1
    with watch.on("computing"):
        now += 2
        with pytest.raises(KeyError), watch.on("waiting"):
            now += 4
            raise KeyError
        now += 8
    now += 16
    seconds = watch.read()
    assert {kind: each for kind, each in seconds.items() if each} == {"computing": 10.0, "waiting": 4.0, "rest": 17.0}
    assert watch.read() == seconds  # reading takes no time
    watch.start()
    assert not any(watch.read().values())


def test_shares_are_of_all_ranks_together() -> None:
    none = dict.fromkeys(KINDS, 0.0)
    ranks = [none | {"computing": 3.0, "waiting": 1.0}, none | {"computing": 1.0, "data": 0.01, "rest": 2.99}]
    assert shares(ranks)["computing"] == 0.5 and sum(shares(ranks).values()) == pytest.approx(1)
    assert shares_text(ranks) == "computing 50%, waiting 12%, rest 37%"
    assert shares_text([none]) == ""


@pytest.mark.parametrize("algorithm", ["asgd", "easgd", "allreduce", "hybrid", "sparse-delta"])
def test_a_run_tells_where_the_time_of_each_rank_went(
    launch: Callable[..., Any], tmp_path: Path, algorithm: str
) -> None:
    """A server computes no gradients; everybody else does; the closing table has the shares."""
    settings = ("--set", f"algorithm.name={algorithm}", "--set", "training.epochs=0.5", "--out", "run")
    ended = launch(3, *settings)
    assert ended.status == 0, ended.err
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert [each["rank"] for each in summary["time"]] == [0, 1, 2]
    assert all(set(each) == {"rank", *KINDS} and min(each.values()) >= 0 for each in summary["time"])
    computing = [each["computing"] > 0 for each in summary["time"]]
    assert computing == [algorithm not in ("asgd", "easgd"), True, True]
    assert "time " in ended.out and "computing" in ended.out
    assert main(["report", str(tmp_path / "run")]) == 0
    assert "Where the time went" in (tmp_path / "run/report.html").read_text()
