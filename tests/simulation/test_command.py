"""`mpitrain simulate` as its users start it."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mpitrain.__main__ import main

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


def test_simulated_ranks_refuse_mpirun_and_a_gpu(launch: Callable[..., Any], tmp_path: Path) -> None:
    """Once, with status 2."""
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    command = ("simulate", "--cluster", "cluster.toml")
    ended = launch(2, *command)
    assert ended.status == 2 and ended.err.count("simulate runs without mpirun") == 1
    ended = launch(1, *command, "--set", "run.device=gpu")
    assert ended.status == 2 and ended.err.count("simulated ranks compute on the CPU") == 1
