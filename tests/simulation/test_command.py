"""`mpitrain simulate` as its users start it."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpitrain.__main__ import main
from mpitrain.api import requirements
from mpitrain.simulation.cluster import GradientCost
from mpitrain.stopwatch import KINDS

CLUSTER = """
nodes = 2
ranks_per_node = 2
cores_per_node = 2
[gradient]
seconds = 0.5
seconds_per_sample = 0.25
[within_node]
latency = 1e-6
bandwidth = 5e9
[between_nodes]
latency = 3e-5
bandwidth = 1.25e8
"""


def test_virtual_seconds_of_gradients(run_command: Callable[..., Any], tmp_path: Path) -> None:
    """One rank: 23 minibatches of up to 64 of the 1438 samples. Two epochs of them, the second one resumed."""
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    command = [sys.executable, "-m", "mpitrain", "simulate", "--cluster", "cluster.toml", "--ranks", "1"]
    keys = ["--set", "algorithm.name=sgd", "--set", "training.epochs=1", "--set", "training.minibatch=64"]
    ended = run_command([*command, *keys, "--out", "run"], 100)
    assert ended.status == 0, ended.err
    epoch = 23 * 0.5 + 1438 * 0.25
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["simulated"] is True and summary["seconds"] == pytest.approx(epoch)
    assert run_command([*command, "--resume", "run", "--set", "training.epochs=2"], 100).status == 0
    resumed = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert resumed["seconds"] == pytest.approx(2 * epoch) and resumed["samples"] == 2876


@pytest.mark.parametrize(
    ("arguments", "cluster", "said"),
    [
        ([], CLUSTER.replace("nodes = 2", "nodes = -2", 1), r"cluster\.toml: nodes: Expected `int` >= 1"),
        ([], CLUSTER + "latncy = 1", r"cluster\.toml: between_nodes: Object contains unknown field `latncy`"),
        ([], CLUSTER.replace("0.25", "nan"), r"cluster\.toml: gradient\.seconds_per_sample: "),
        ([], CLUSTER.replace("seconds = 0.5", ""), r"cluster\.toml: gradient: .* missing required field `seconds`"),
        ([], "nodes =", r"cluster\.toml: not TOML"),
        ([], None, r"cluster\.toml: No such file"),
        (
            [],
            CLUSTER.replace("0.25", "0.25\nspread = [2.0, 1.0]"),
            r"cluster\.toml: gradient: `spread` does not ascend",
        ),
        ([], CLUSTER + "[[slow]]\nnode = 2\nfactor = 3.0", r"cluster\.toml: slow: there is no node 2"),
        ([], CLUSTER + "[[slow]]\nnode = 1\nfactor = 3.0\n" * 2, r"cluster\.toml: slow: node 1 stands there twice"),
        ([], CLUSTER + "[[faults]]\nrank = 4\nat = 3.0", r"cluster\.toml: faults: there is no rank 4"),
        ([], CLUSTER + "[[faults]]\nrank = 3\nat = -3.0", r"cluster\.toml: faults.*\bat: "),
        (["--ranks", "5"], CLUSTER, r"--ranks 5: .*cluster\.toml has room for 4"),
        (["--ranks", "0"], CLUSTER, r"--ranks 0: at least 1"),
    ],
)
def test_a_bad_cluster_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], cluster: str | None, said: str
) -> None:
    """It names the file and the key."""
    if cluster is not None:
        (tmp_path / "cluster.toml").write_text(cluster)
    assert main(["simulate", "--cluster", str(tmp_path / "cluster.toml"), *arguments]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert re.search(said, err)


UPDATES = """
[update]
seconds_per_byte = 1e-6
[copy]
seconds_per_byte = 1e-7
[evaluation]
seconds_per_sample = 1e-3
"""


@pytest.mark.parametrize(("exchange", "messages", "copies"), [("shared", 2, 1), ("messages", 4, 4)])
def test_virtual_seconds_of_updates_and_copies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], exchange: str, messages: int, copies: int
) -> None:
    """One worker of a server, which waits for each of its 23 updates an epoch. In shared memory the worker copies Θ,
    and a gradient's message and its answer take a latency each; by messages, both ends check gradient and Θ, and Θ is
    asked for. Two epochs less one, so that the start does not count."""
    keys = ["--set", "algorithm.name=asgd", "--set", "training.minibatch=64", "--set", f"run.exchange={exchange}"]
    keys += ["--set", "run.checkpoint_every=0", "--set", "run.progress=none"]
    slow = CLUSTER.replace("1e-6", "1e-3").replace("5e9", "1e15") + UPDATES
    (tmp_path / "cluster.toml").write_text(slow)
    command = ["simulate", "--cluster", str(tmp_path / "cluster.toml"), "--ranks", "2"]
    told = []
    for epochs in (1, 2):
        out = tmp_path / str(epochs)
        quiet = ["--set", "run.evaluate_every=0", "--set", f"training.epochs={epochs}", "--out", str(out)]
        assert main([*command, *keys, *quiet]) == 0, capsys.readouterr().err
        told.append(json.loads((out / "summary.json").read_text()))
        records = list(map(json.loads, (out / "metrics.jsonl").read_text().splitlines()))
        last = {each["event"]: each["seconds"] for each in records[1:]}
        assert last == dict.fromkeys(("evaluate", "checkpoint", "train", "end"), told[-1]["seconds"])
    nbytes = 4 * 38_282
    each = messages * 1e-3 + nbytes * (1e-6 + copies * 1e-7)
    assert told[1]["seconds"] - told[0]["seconds"] == pytest.approx(23 * (0.5 + each) + 1438 * 0.25)
    busy = nbytes * (1e-6 + (copies > 1) * 1e-7)  # an update, and before it a check of what has come
    assert told[1]["server_busy_seconds"] == pytest.approx(46 * busy)


@pytest.mark.parametrize("algorithm", ["asgd", "easgd"])
def test_a_server_probes_before_the_training_begins(tmp_path: Path, algorithm: str) -> None:
    """One worker on another node computes 23 gradients, and nothing else takes time: no 75 ms of probing do."""
    free = re.sub(r"latency = .*", "latency = 0.0", re.sub(r"bandwidth = .*", "bandwidth = 1e15", CLUSTER))
    (tmp_path / "cluster.toml").write_text(free.replace("ranks_per_node = 2", "ranks_per_node = 1"))
    keys = [f"algorithm.name={algorithm}", "training.minibatch=64", "training.epochs=1", "run.evaluate_every=0"]
    words = [word for key in (*keys, "run.checkpoint_every=0") for word in ("--set", key)]
    command = ["simulate", "--cluster", str(tmp_path / "cluster.toml"), *words]
    assert main([*command, "--out", str(tmp_path / "run")]) == 0
    told = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert told["exchange"] == "one-sided"
    assert told["seconds"] == pytest.approx(23 * 0.5 + 1438 * 0.25, abs=1e-3)
    assert [sum(each[kind] for kind in KINDS) for each in told["time"]] == pytest.approx(
        [told["seconds"]] * 2, abs=1e-3
    )


@pytest.mark.parametrize("own", [True, False])
def test_virtual_seconds_of_sparse_deltas(tmp_path: Path, own: bool) -> None:
    """One rank, 23 updates: a pass over the residual each, by default as long as an update, and its own entries."""
    delta = "[delta]\nseconds_per_byte = 3e-6\n" if own else ""
    (tmp_path / "cluster.toml").write_text(CLUSTER + UPDATES + delta + "[entries]\nseconds_per_byte = 1e-3\n")
    keys = ["algorithm.name=sparse-delta", "algorithm.threshold=4", "training.minibatch=64", "training.epochs=1"]
    words = [word for key in (*keys, "run.evaluate_every=0") for word in ("--set", key)]
    command = ["simulate", "--cluster", str(tmp_path / "cluster.toml"), "--ranks", "1", *words]
    assert main([*command, "--out", str(tmp_path / "run")]) == 0
    told = json.loads((tmp_path / "run" / "summary.json").read_text())
    entries, passes = told["density"] * 23 * 38_282, 23 * 4 * 38_282 * (3e-6 if own else 1e-6)
    assert entries > 10
    assert told["seconds"] == pytest.approx(23 * 0.5 + 1438 * 0.25 + passes + entries * 4e-3)


def test_virtual_seconds_of_an_evaluation(tmp_path: Path) -> None:
    """One rank: 23 updates, then 359 samples, on a node that is three times as slow. These are no training."""
    (tmp_path / "cluster.toml").write_text(CLUSTER + UPDATES + "[[slow]]\nnode = 0\nfactor = 3.0")
    keys = ["--set", "algorithm.name=sgd", "--set", "training.minibatch=64", "--set", "training.epochs=1"]
    command = ["simulate", "--cluster", str(tmp_path / "cluster.toml"), "--ranks", "1", *keys]
    assert main([*command, "--out", str(tmp_path / "run")]) == 0
    told = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert told["seconds"] == pytest.approx(3 * (23 * (0.5 + 4 * 38_282 * 1e-6) + 1438 * 0.25))
    assert told["time"][0]["evaluation"] == pytest.approx(3 * 359 * 1e-3)


@pytest.mark.parametrize("algorithm", ["asgd", "easgd", "allreduce", "hybrid"])
def test_ranks_that_do_not_fit_in_memory_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], algorithm: str
) -> None:
    """Before anything is allocated: θ, a gradient, and a velocity or a worker's own copy, 4 · 3 · 59.8 M · 4 bytes."""
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    monkeypatch.setattr(requirements, "usable_memory", lambda: 1_000_000_000)  # what one rank needs fits
    keys = ["--set", f"algorithm.name={algorithm}", "--set", "model.width=40", "--out", str(tmp_path / "run")]
    assert main(["simulate", "--cluster", str(tmp_path / "cluster.toml"), *keys]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and not (tmp_path / "run").exists()
    assert re.search(r"--ranks 4: need at least 2\.9 GB, a process may have 1\.0: .* 3 vectors of 59,837,450 ", err)


def test_a_slow_node_and_a_drawn_factor(run_command: Callable[..., Any], tmp_path: Path) -> None:
    """A factor of 3 for all gradients of the only rank, times one that is always 2."""
    slow = CLUSTER.replace("0.25", "0.25\nspread = [2.0]") + "[[slow]]\nnode = 0\nfactor = 3.0"
    (tmp_path / "cluster.toml").write_text(slow)
    command = [sys.executable, "-m", "mpitrain", "simulate", "--cluster", "cluster.toml", "--ranks", "1"]
    keys = ["--set", "algorithm.name=sgd", "--set", "training.epochs=1", "--set", "training.minibatch=64"]
    assert run_command([*command, *keys, "--out", "run"], 100).status == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["seconds"] == pytest.approx(6 * (23 * 0.5 + 1438 * 0.25))


def test_factors_are_drawn_between_the_quantiles() -> None:
    """Quantiles 1, 2, 4 at 0, ½, 1: the mean is (1.5 + 3) / 2; each key draws its own."""
    drawn = [GradientCost(1.0, 0.0, [1.0, 2.0, 4.0]).factor(3, number) for number in range(2000)]
    assert np.mean(drawn) == pytest.approx(2.25, abs=0.06) and min(drawn) >= 1 and max(drawn) <= 4
    assert GradientCost(1.0, 0.0, [1.0, 2.0, 4.0]).factor(3, 7) == drawn[7]


@pytest.mark.parametrize("algorithm", ["allreduce", "easgd", "sparse-delta"])
def test_a_rank_that_dies_is_named_and_one_that_freezes_is_awaited(
    run_command: Callable[..., Any], tmp_path: Path, algorithm: str
) -> None:
    """After run.deadline in virtual time, as in a real job; a shorter freeze only takes its time."""
    keys = ["--set", f"algorithm.name={algorithm}", "--set", "algorithm.order=round-robin"]
    keys = [*keys[: 2 if algorithm == "allreduce" else 4], "--set", "training.epochs=1", "--set", "run.deadline=60"]
    seconds, digests = {}, {}
    for name, lasts in (("whole", None), ("frozen", "\nlasts = 30.0"), ("dead", "")):
        fault = "" if lasts is None else f"[[faults]]\nrank = 1\nat = 20.0{lasts}"
        (tmp_path / "cluster.toml").write_text(CLUSTER + fault)
        command = [sys.executable, "-m", "mpitrain", "simulate", "--cluster", "cluster.toml", "--ranks", "3"]
        ended = run_command([*command, *keys, "--out", name], 100)
        if name == "dead":
            assert ended.status == 1 and "waited 60 s for rank 1" in ended.err, ended.err
            continue
        assert ended.status == 0, ended.err
        summary = json.loads((tmp_path / name / "summary.json").read_text())
        seconds[name], digests[name] = summary["seconds"], summary["parameters_sha256"]
    assert digests["whole"] == digests["frozen"]
    assert 0 < seconds["frozen"] - seconds["whole"] <= 30.5


def test_a_rank_that_never_starts_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In one line; it ended with a traceback."""
    (tmp_path / "cluster.toml").write_text(CLUSTER + "[[faults]]\nrank = 1\nat = 0.0")
    assert main(["simulate", "--cluster", str(tmp_path / "cluster.toml"), "--out", str(tmp_path / "run")]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "waited 300 s for rank 1 (the start of the program)" in err


def test_simulated_ranks_refuse_mpirun_and_a_gpu(launch: Callable[..., Any], tmp_path: Path) -> None:
    """Once, with status 2."""
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    command = ("simulate", "--cluster", "cluster.toml")
    ended = launch(2, *command)
    assert ended.status == 2 and ended.err.count("simulate runs without mpirun") == 1
    ended = launch(1, *command, "--set", "run.device=gpu")
    assert ended.status == 2 and ended.err.count("simulated ranks compute on the CPU") == 1


def test_simulated_ranks_refuse_to_go_on_without_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All trained, spares too, and a fault ended the job."""
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    keys = ("--set", "run.lost_ranks=continue", "--set", "run.spares=1")
    assert main(["simulate", "--cluster", str(tmp_path / "cluster.toml"), "--out", str(tmp_path / "run"), *keys]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "simulated ranks do not go on without others" in err


NETWORK = 'network = {{ name = "half of it", parameters = {}, multiply_adds = {} }}\n'


@pytest.mark.parametrize(
    ("parameters", "operations", "scale"),
    [
        (38_282, 116_352, 1),  # the digits' own network
        (38_282, 0, 1),  # the same, measured as a module
        (20_000, 58_176, 2),  # one of half as many multiply-adds
    ],
)
def test_a_sample_of_another_network_takes_as_much_longer_as_it_has_multiply_adds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], parameters: int, operations: int, scale: int
) -> None:
    """Also in an evaluation. What a gradient takes besides its samples stays as it is."""
    (tmp_path / "cluster.toml").write_text(NETWORK.format(parameters, operations) + CLUSTER + UPDATES)
    keys = ["--set", "algorithm.name=sgd", "--set", "training.minibatch=64", "--set", "training.epochs=1"]
    command = ["simulate", "--cluster", str(tmp_path / "cluster.toml"), "--ranks", "1", *keys]
    assert main([*command, "--out", str(tmp_path / "run")]) == 0
    told = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert told["seconds"] == pytest.approx(23 * (0.5 + 4 * 38_282 * 1e-6) + scale * 1438 * 0.25)
    assert told["time"][0]["evaluation"] == pytest.approx(scale * 359 * 1e-3)
    line = (
        "half of it (20,000 parameters), not of model.preset = 'digits-cnn' (38,282): a sample is taken to last 2 times"
    )
    assert capsys.readouterr().out.count(line) == (scale == 2)


def test_a_network_that_cannot_be_compared_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its multiply-adds are not known, and it has other parameters."""
    (tmp_path / "cluster.toml").write_text(NETWORK.format(20_000, 0) + CLUSTER)
    assert main(["simulate", "--cluster", str(tmp_path / "cluster.toml"), "--out", str(tmp_path / "run")]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "how they compare is not known: calibrate with it, or delete [network]" in err
    assert not (tmp_path / "run").exists()
