"""`mpitrain simulate --phantom`: the messages and times of a run with gradients, and nothing claimed of errors."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpitrain.__main__ import main
from mpitrain.device.phantom import Phantom

CLUSTER = """
nodes = 2
ranks_per_node = 2
cores_per_node = 1
[gradient]
seconds = 2e-3
seconds_per_sample = 1e-5
spread = [0.5, 1.0, 2.0]
[update]
seconds_per_byte = 1e-9
[copy]
seconds_per_byte = 1e-10
[within_node]
latency = 1e-6
bandwidth = 5e9
[between_nodes]
latency = 3e-5
bandwidth = 1.25e8
"""
QUIET = ("training.epochs=1", "run.evaluate_every=0", "run.checkpoint_every=0", "run.progress=plain")


def simulated(folder: Path, name: str, *arguments: str) -> dict[str, Any]:
    """The summary of a run on four ranks."""
    (folder / "cluster.toml").write_text(CLUSTER)
    keys = [word for key in (*arguments, *QUIET) if "=" in key for word in ("--set", key)]
    flags = [word for word in arguments if "=" not in word]
    command = ["simulate", "--cluster", str(folder / "cluster.toml"), *flags, *keys, "--out", str(folder / name)]
    assert main(command) == 0
    return dict(json.loads((folder / name / "summary.json").read_text()))


@pytest.mark.parametrize(
    "keys",
    [
        ("algorithm.name=asgd",),
        ("algorithm.name=asgd", "run.exchange=messages", "algorithm.preset=chan2014"),
        ("algorithm.name=easgd", "algorithm.tau=4"),
        ("algorithm.name=easgd", "run.exchange=messages"),
        ("algorithm.name=easgd", "algorithm.centre=sharded"),
        ("algorithm.name=mdownpour",),
        ("algorithm.name=allreduce", "algorithm.bucket_mb=0.05"),
        ("algorithm.name=block-momentum",),
        ("algorithm.name=easgd-sync",),
    ],
)
def test_bytes_messages_and_seconds_are_those_of_gradients(tmp_path: Path, keys: tuple[str, ...]) -> None:
    """On two nodes whose cores and cards are shared. Only how the errors of sums of seconds fall may differ."""
    told, phantom = simulated(tmp_path, "gradients", *keys), simulated(tmp_path, "phantom", "--phantom", *keys)
    same = ("bytes_sent", "bytes_received", "messages_sent", "updates", "samples", "exchange", "staleness_mean")
    assert {key: phantom[key] for key in same} == {key: told[key] for key in same}
    assert told["bytes_sent"] > 0 and phantom["seconds"] == pytest.approx(told["seconds"], rel=1e-9)


def test_nothing_is_claimed_of_what_was_not_computed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No loss, no error, no hash, no checkpoint; the report tells the rest."""
    told = simulated(tmp_path, "run", "--phantom", "algorithm.name=asgd")
    assert told["phantom"] is True and told["simulated"] is True
    claims = ("train_loss", "test_loss", "test_error", "parameters_sha256")
    assert [told[key] for key in claims] == [None] * 4
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert {each["event"] for each in records} & {"evaluate", "checkpoint"} == set()
    assert all(each.get("train_loss") is None for each in records)
    assert not (tmp_path / "run" / "checkpoints").exists()
    closing = capsys.readouterr().out
    assert re.search(r"train loss\s+–", closing) and "error" not in closing
    assert main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "report.html")]) == 0
    assert "Test error" not in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set", "algorithm.name=sparse-delta"], "--phantom: sparse-delta: what it sends depends on the gradients"),
        (["--set", "algorithm.name=hybrid"], "--phantom: hybrid: its layers are divided over the ranks"),
        (["--continue", "somewhere"], "--phantom: leaves no checkpoint to resume from"),
        (["--set", "run.gradient_statistics=true"], "--phantom: run.gradient_statistics: there are no gradients"),
        (["--set", "run.record_order=true"], "--phantom: run.record_order: there is nothing to repeat to the bit"),
    ],
)
def test_what_needs_values_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    """In one line, once."""
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    assert main(["simulate", "--phantom", "--cluster", str(tmp_path / "cluster.toml"), *arguments]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and said in err


def test_a_phantom_is_as_long_as_a_vector_and_changes_nothing() -> None:
    """Its parts and copies, too; what NumPy makes of it and a true vector leaves that as it is."""
    phantom, vector = Phantom(10**12, np.float32), np.ones(5)
    assert (phantom.nbytes, phantom[7:].size, phantom.view(np.uint8).size) == (4 * 10**12, 10**12 - 7, 4 * 10**12)
    assert np.empty_like(phantom[:5]).nbytes == 20 and (phantom * 2.0).size == phantom.size
    np.copyto(vector, phantom[:5])
    assert np.add(vector, phantom[:5], out=vector) is vector and vector.tolist() == [1.0] * 5
    assert np.dot(phantom, phantom) == 0.0
