"""The traces of simulated and of real runs."""

import json
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from mpitrain.__main__ import main
from mpitrain.errors import WireError
from mpitrain.monitoring import trace
from mpitrain.mpi import Transport
from mpitrain.simulation.job import Job
from mpitrain.stopwatch import KINDS

Events = dict[int, list[dict[str, Any]]]  # by rank
#: A message between the nodes takes 1 ms, and 1 µs for each of its bytes.
CLUSTER = """
nodes = 2
ranks_per_node = 1
cores_per_node = 1
[gradient]
seconds = 0.5
seconds_per_sample = 0.25
[within_node]
latency = 0.0
bandwidth = 1e15
[between_nodes]
latency = 1e-3
bandwidth = 1e6
"""
SLOW = "[[slow]]\nnode = 1\nfactor = 3.0\n"
PARAMETERS = 38_282  # of the digits' network
QUICK = ("--set", "training.epochs=1", "--set", "run.progress=none")


def read(run: Path) -> tuple[Events, dict[str, Any]]:
    """The stretches of time of each rank in a trace, which follow one another without a gap, and what it is about."""
    found = json.loads((run / "trace.json").read_text())
    events: Events = defaultdict(list)
    for event in found["traceEvents"]:
        if event["ph"] == "X":
            events[event["pid"]].append(event)
    for own in events.values():
        for before, after in pairwise(own):
            assert before["ts"] + before["dur"] == pytest.approx(after["ts"], abs=1e-4)  # 0.1 ns
    return events, found["otherData"]


def durations(events: list[dict[str, Any]], kind: str) -> list[float]:
    """Microseconds of the stretches of one kind."""
    return [event["dur"] for event in events if event["name"] == kind]


def simulate(folder: Path, cluster: str, name: str, *arguments: str) -> Path:
    """The run folder of a simulation."""
    (folder / "cluster.toml").write_text(cluster)
    words = ["simulate", "--cluster", str(folder / "cluster.toml"), *QUICK, *arguments, "--out", str(folder / name)]
    assert main(words) == 0
    return folder / name


def test_gradients_take_what_the_cluster_says_and_waits_the_rest(tmp_path: Path) -> None:
    """By hand: 22 minibatches of 64 samples and one of 30, half for each rank. A gradient takes 0.5 s and 0.25 s for
    each sample, on the second node three times that; a sum of 38,282 float32, in halves there and back, 2 ms and
    153.128 ms, and before it go 24 bytes of losses. Rank 1 hears 1 ms later than rank 0 that the training begins."""
    keys = ("--set", "algorithm.name=allreduce", "--set", "training.minibatch=32")
    run = simulate(tmp_path, CLUSTER + SLOW, "run", "--trace", *keys)
    events, about = read(run)
    own = [8.5e6] * 22 + [4.25e6]
    assert about["simulated"] is True and about["dropped"] == {} and set(events) == {0, 1}
    assert durations(events[0], "computing") == own
    assert durations(events[1], "computing") == [3 * each for each in own]
    sums = 2e3 + 24 + 4 * PARAMETERS
    gradients = "the other ranks' gradients"
    waits = [[each["dur"] for each in events[rank] if each["args"].get("what") == gradients] for rank in (0, 1)]
    assert waits[0] == pytest.approx([2 * each + sums + 1e3 * (i == 0) for i, each in enumerate(own)], abs=1e-3)
    assert waits[1] == pytest.approx([sums] * 23, abs=1e-3)
    for each in json.loads((run / "summary.json").read_text())["time"]:
        sums_of_kinds = {kind: sum(durations(events[each["rank"]], kind)) / 1e6 for kind in KINDS}
        assert sums_of_kinds == pytest.approx({kind: each[kind] for kind in KINDS}, abs=1e-6)


def test_updates_take_what_the_cluster_says(tmp_path: Path) -> None:
    """2 µs for each of 153,128 bytes: plain SGD is one rule."""
    keys = ("--set", "algorithm.name=allreduce", "--set", "training.minibatch=32", "--set", "training.optimizer=sgd")
    cluster = CLUSTER.replace("[within_node]", "[update]\nseconds_per_byte = 2e-6\n[within_node]")
    events, _ = read(simulate(tmp_path, cluster, "run", "--trace", *keys))
    for own in events.values():
        updates = [each["dur"] for each in own if each["args"].get("what") == "an update"]
        assert updates == pytest.approx([2 * 4 * PARAMETERS] * 23, abs=1e-3)


def test_a_seed_gives_a_trace_to_the_byte_and_tracing_changes_nothing(tmp_path: Path) -> None:
    """Where what comes first decides: two workers of a server, whose gradients take drawn times."""
    cluster = CLUSTER.replace("ranks_per_node = 1", "ranks_per_node = 2").replace("0.25", "0.25\nspread = [0.5, 2.0]")
    keys = ("--ranks", "3", "--set", "algorithm.name=asgd")
    runs = [simulate(tmp_path, cluster, name, *keys, "--trace") for name in ("first", "second")]
    assert (runs[0] / "trace.json").read_bytes() == (runs[1] / "trace.json").read_bytes()
    plain = simulate(tmp_path, cluster, "plain", *keys)
    assert not (plain / "trace.json").exists()
    told = [json.loads((run / "summary.json").read_text()) for run in (plain, runs[0])]
    rounded = {"seconds": pytest.approx(told[1]["seconds"]), "samples_per_second": None, "time": None}
    # the configuration that is sent differs in a byte
    rounded["link_busy_seconds"] = pytest.approx(told[1]["link_busy_seconds"], abs=1e-5)
    assert {**told[0], "samples_per_second": None, "time": None} == {**told[1], **rounded}
    events, _ = read(runs[0])
    awaited = {(tuple(event["args"]["whom"])) for event in events[1] if event["name"] == "waiting"}
    assert awaited == {(0,)} and any(event["args"].get("bytes") for event in events[2])
    points = [event for event in json.loads((runs[0] / "trace.json").read_text())["traceEvents"] if event["ph"] == "i"]
    assert sum(event["name"] == "update" for event in points) == told[0]["updates"]
    assert {event["args"]["to"] for event in points if event["name"] == "send" and event["pid"] == 0} == {1, 2}


@pytest.mark.parametrize("name", ["easgd", "sparse-delta"])
def test_updates_that_are_reported_together_are_as_many_instants(tmp_path: Path, name: str) -> None:
    """Workers of a centre report several exchanges at once, or none, and a peer applies several messages. On rank 0."""
    cluster = CLUSTER.replace("seconds = 0.5", "seconds = 1e-3").replace("0.25", "1e-4")
    keys = ("--ranks", "2", "--set", f"algorithm.name={name}", "--set", "algorithm.tau=2")
    run = simulate(tmp_path, cluster, "run", "--trace", *keys)
    points = [event for event in json.loads((run / "trace.json").read_text())["traceEvents"] if event["ph"] == "i"]
    updates = json.loads((run / "summary.json").read_text())["updates"]
    assert sum(event["name"] == "update" and event["pid"] == 0 for event in points) == updates > 0


def test_what_is_too_much_is_left_out_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "MOST_OF_A_RANK", 10)
    run = simulate(tmp_path, CLUSTER, "run", "--trace", "--set", "algorithm.name=allreduce")
    found = json.loads((run / "trace.json").read_text())
    kept = [event for event in found["traceEvents"] if event["ph"] == "X" and event["pid"] == 0]
    assert len(kept) == 10 and kept[0]["ts"] == 0
    said = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    whole = sum(found["otherData"]["dropped"].values())
    assert [line["text"].split(" events")[0] for line in said if line["event"] == "warning"] == [
        f"trace.json: {whole:,}"
    ]


def test_a_real_run_has_all_its_ranks_and_a_resumed_one_its_last_session(
    launch: Callable[..., Any], tmp_path: Path
) -> None:
    """A wait's stretch holds the looks between its sleeps, which the summary's table counts as something else."""
    words = ("--set", "run.trace=true", "--set", "algorithm.name=easgd", *QUICK)
    ended = launch(3, *words, "--out", "run")
    assert ended.status == 0, ended.err
    events, about = read(tmp_path / "run")
    assert set(events) == {0, 1, 2} and about["from_sample"] == 0 and about["to_sample"] == 1438
    assert min(own[0]["ts"] for own in events.values()) >= 0
    for each in json.loads((tmp_path / "run" / "summary.json").read_text())["time"]:
        own = events[each["rank"]]
        whole, looking = sum(each[kind] for kind in KINDS), sum(event["args"].get("looking", 0) for event in own) / 1e6
        assert sum(event["dur"] for event in own) / 1e6 == pytest.approx(whole, abs=1e-6)
        for kind in KINDS:
            assert sum(durations(own, kind)) / 1e6 == pytest.approx(each[kind], abs=looking + 1e-6)
    before = (tmp_path / "run" / "trace.json").read_bytes()
    assert launch(3, "--resume", "run").status == 0
    assert (tmp_path / "run" / "trace.json").read_bytes() == before  # nothing was left to train
    assert launch(2, "--resume", "run", "--set", "training.epochs=2", "--set", "algorithm.name=allreduce").status == 0
    events, about = read(tmp_path / "run")
    assert set(events) == {0, 1} and about["from_sample"] == 1438 and about["to_sample"] == 2876


def test_a_damaged_part_names_its_sender() -> None:
    def program(transport: Transport) -> list[bytes]:
        if transport.rank == 1:
            plain = transport.begin_send
            transport.begin_send = lambda to, tag, buffer: plain(to, tag, b"x" + bytes(buffer)[1:])  # type: ignore
        return trace._gathered(transport, b"abc")

    with pytest.raises(WireError, match="rank 1 sent a damaged trace"):
        Job[list[bytes]](2).run(program)
