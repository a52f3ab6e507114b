"""`mpitrain simulate --phantom`: the messages and times of a run with gradients, and nothing claimed of errors."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpitrain.__main__ import main
from mpitrain.compression.residual import INDEX, NO_LEVELS
from mpitrain.device.phantom import Phantoms, PhantomVector

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
[delta]
seconds_per_byte = 3e-10
[entries]
seconds_per_byte = 5e-9
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
    keys = [word for key in (*QUIET, *arguments) if "=" in key for word in ("--set", key)]
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


@pytest.mark.parametrize(
    ("keys", "slack"),
    [
        ((), 8),
        (("algorithm.order=round-robin", "algorithm.bits=4"), 9 + 4 * 180),
        (("run.team=node",), 8),
        (("algorithm.tau=3", "training.learning_rate=0.02"), 8),
    ],
)
def test_sparse_deltas_of_one_density_are_those_of_gradients(tmp_path: Path, keys: tuple[str, ...], slack: int) -> None:
    """Where no message is dense, bytes are a line in the entries: but for half an entry of each of four ranks those of
    180 messages are equal. Levels are padded to whole words in each of them."""
    keys = ("algorithm.name=sparse-delta", "algorithm.threshold=4", *keys)
    told = simulated(tmp_path, "gradients", *keys)
    density = repr(told["density"])
    phantom = simulated(tmp_path, "phantom", "--phantom", "--density", density, *keys)
    same = ("messages_sent", "updates", "samples", "exchange", "emissions_skipped", "bytes_sent_within_teams")
    assert {key: phantom.get(key) for key in same} == {key: told.get(key) for key in same}
    assert told["emissions_skipped"] == 0
    assert phantom["density"] == pytest.approx(told["density"], abs=2 / (180 * 38282))
    assert 180 * phantom["bytes_per_minibatch"] == pytest.approx(180 * told["bytes_per_minibatch"], abs=slack + 0.1)
    assert abs(phantom["bytes_sent"] - told["bytes_sent"]) <= 3 * slack  # to three peers
    assert phantom["seconds"] == pytest.approx(told["seconds"], rel=1e-3)
    assert phantom["residual_norm"] is None and told["residual_norm"] > 0


@pytest.mark.parametrize(
    ("density", "keys", "nbytes"),
    [
        ("0.001", (), 72 + 4 * 38),  # 38.282 entries: header, trailer, a word for each
        ("0.001", ("algorithm.bits=4",), 72 + 4 * (38 + 4)),  # 3 bits of a level each: 114 bits
        ("0.1", (), 72 + 4 * (1197 + 120)),  # 3828 entries: a bit for each of 38282 weights, and a sign each
    ],
)
def test_a_step_of_sparse_deltas_by_hand(tmp_path: Path, density: str, keys: tuple[str, ...], nbytes: int) -> None:
    """One minibatch of 8 on each of four ranks."""
    step = ("algorithm.name=sparse-delta", "training.minibatch=8", f"training.epochs={32 / 1438}", *keys)
    told = simulated(tmp_path, "run", "--phantom", "--density", density, *step)
    assert (told["samples"], told["updates"], told["bytes_per_minibatch"]) == (32, 4, nbytes)
    assert told["density"] == {"0.001": 38, "0.1": 3828}[density] / 38282


def test_the_density_is_that_of_the_configuration_unless_told(tmp_path: Path) -> None:
    """The threshold, which nothing exceeds, stays as it is."""
    keys = ("algorithm.name=sparse-delta", "algorithm.target_density=0.01")
    told = simulated(tmp_path, "a", "--phantom", *keys)
    other = simulated(tmp_path, "b", "--phantom", "--density", "0.02", *keys)
    assert told["density"] == pytest.approx(0.01, rel=1e-4) and other["density"] == pytest.approx(0.02, rel=1e-4)
    assert told["threshold"] == other["threshold"] == 1.0


def test_a_density_is_assumed_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where neither the command nor the configuration has one."""
    told = simulated(tmp_path, "run", "--phantom", "algorithm.name=sparse-delta")
    assert told["density"] == pytest.approx(0.002, rel=1e-3)
    assert "phantom vectors (of each gradient 0.2% is sent, as --density is not given)" in capsys.readouterr().out


class _Pace:
    """Notes what work there is."""

    def __init__(self) -> None:
        self.done: list[tuple[str, int]] = []

    def work(self, what: str, nbytes: int) -> None:
        self.done.append((what, nbytes))


def test_entries_come_by_the_density_and_take_time() -> None:
    """A quarter of gradients in parts of 4 and 6 elements: in all 1, 2 (2.5), 4 (3.5), 5. Of the next two nothing is
    emitted; then 11 are due after 44 elements, but the part has room for 4, and 12 (12.5) after 50."""
    pace, words = _Pace(), np.zeros(10, np.uint32)
    device = Phantoms(pace, 0.25)  # type: ignore[arg-type]
    vector = PhantomVector(10, np.float32)

    def emit(part: slice, threshold: float = 1.0) -> int:
        known = {"threshold": threshold, "levels": NO_LEVELS, "first": part.start}
        return device.emit(vector[part], vector[part], words[part], **known)

    counts = [emit(slice(6, 10)), emit(slice(0, 6)), emit(slice(6, 10)), emit(slice(0, 6))]
    assert counts == [1, 1, 2, 1] and pace.done == [("delta", nbytes) for nbytes in (16, 24, 16, 24)]
    assert [emit(part, np.inf) for part in (slice(6, 10), slice(0, 6)) * 2] == [0, 0, 0, 0]
    assert [emit(slice(6, 10)), emit(slice(0, 6))] == [4, 3]
    found = (words & INDEX).tolist()
    assert found[6:] == [6, 7, 8, 9] and sorted({*found[:3], 6}) == [*found[:3], 6]
    device.apply_words(words[:3], 1, vector, vector)
    assert pace.done[-1] == ("entries", 12)


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
    assert "loss" not in closing and "error" not in closing
    assert main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "report.html")]) == 0
    assert "Test error" not in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set", "algorithm.name=asgd", "--density", "0.1"], "--density: asgd sends whole vectors"),
        (["--density", "2"], "--density 2: above 0 and at most 1"),
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


def test_gradients_take_no_density(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They show what is sent."""
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    cluster = ["--cluster", str(tmp_path / "cluster.toml")]
    assert main(["simulate", *cluster, "--set", "algorithm.name=sparse-delta", "--density", "0.1"]) == 2
    assert capsys.readouterr().err == "mpitrain: --density: only with --phantom: gradients show what they send\n"


def test_a_phantom_is_as_long_as_a_vector_and_changes_nothing() -> None:
    """Its parts and copies, too; what NumPy makes of it and a true vector leaves that as it is."""
    phantom, vector = PhantomVector(10**12, np.float32), np.ones(5)
    assert (phantom.nbytes, phantom[7:].size, phantom.view(np.uint8).size) == (4 * 10**12, 10**12 - 7, 4 * 10**12)
    assert np.empty_like(phantom[:5]).nbytes == 20 and (phantom * 2.0).size == phantom.size
    np.copyto(vector, phantom[:5])
    assert np.add(vector, phantom[:5], out=vector) is vector and vector.tolist() == [1.0] * 5
    assert np.dot(phantom, phantom) == 0.0
