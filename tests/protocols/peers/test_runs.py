"""Whole sparse-delta runs: what they leave, resuming, stopping, and faults on one rank of three."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from mpitrain.protocols.peers.meeting import Meetings

PEERS = ("--set", "algorithm.name=sparse-delta")
QUIET = ("--set", "run.evaluate_every=0")


def summary(folder: Path) -> dict[str, Any]:
    """summary.json."""
    return dict(json.loads((folder / "summary.json").read_text()))


@pytest.mark.parametrize(("ranks", "bits"), [(1, 1), (2, 1), (4, 1), (8, 1), (4, 2), (2, 4), (4, 4), (2, 32)])
def test_the_digits_are_learnt_by_the_defaults(
    simulated: Callable[..., Any], tmp_path: Path, ranks: int, bits: int
) -> None:
    """Under 10 % test error with identical replicas; density, threshold and compression over time and at the end."""
    ended = simulated(ranks, *PEERS, "--set", f"algorithm.bits={bits}", "--out", "run")
    assert ended.status == 0, ended.err
    told = summary(tmp_path / "run")
    assert told["test_error"] < 0.10 and told["replicas_identical"] is True
    assert (told["ranks"], told["workers"], told["samples"]) == (ranks, ranks, 14380)
    assert told["compression_ratio"] > 20 and told["bits_per_element"] > 0
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    last = [record for record in records if "density" in record and record["event"] == "train"][-1]
    keys = {"density", "threshold", "residual_norm", "bytes_per_minibatch", "compression_ratio", "bits_per_element"}
    assert keys <= set(told) and keys <= set(last)


@pytest.mark.parametrize("order", ["free", "round-robin"])
@pytest.mark.parametrize("every", [0, 400])
def test_peers_meet_only_when_somebody_asks(
    simulated: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, order: str, every: int
) -> None:
    """At the end, and for each checkpoint before it."""
    met: Counter[int] = Counter()
    plain = Meetings.meet

    def meet(meetings: Meetings, *arguments: Any) -> bool:
        met[meetings.peer.number] += 1
        return plain(meetings, *arguments)

    monkeypatch.setattr(Meetings, "meet", meet)
    keys = (
        f"algorithm.order={order}",
        "training.epochs=2",
        "run.checkpoint_every=0",
        f"run.checkpoint_samples={every}",
    )
    ended = simulated(3, *PEERS, *QUIET, *(word for key in keys for word in ("--set", key)), "--out", "run")
    assert ended.status == 0, ended.err
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    saved = sum(record["event"] == "checkpoint" for record in records)  # the last one is written after the meeting
    assert saved > 1 if every else saved == 1
    assert met == dict.fromkeys(range(3), saved)


def test_a_resumed_round_robin_run_ends_with_the_bits_of_an_uninterrupted_one(
    simulated: Callable[..., Any], tmp_path: Path
) -> None:
    """Three epochs at once; two, then the third: counts, residuals and thresholds are taken up again."""
    settings = (*PEERS, *QUIET, "--set", "algorithm.order=round-robin", "--set", "algorithm.target_density=0.01")
    # 1440 samples would be whole rounds of 3 × 8; of 1438 the rounds of epochs 2 and 3 differ from those of 1 to 3.
    settings = (*settings, "--set", "training.minibatch=719")
    assert simulated(2, *settings, "--set", "training.epochs=3", "--out", "whole").status == 0
    assert simulated(2, *settings, "--set", "training.epochs=2", "--out", "cut").status == 0
    assert simulated(2, "--resume", "cut", "--set", "training.epochs=3").status == 0
    hashes = [summary(tmp_path / run)["parameters_sha256"] for run in ("whole", "cut")]
    assert hashes[0] == hashes[1]


def held(folder: Path) -> np.ndarray:
    """The sum of the residuals of the newest checkpoint."""
    newest = sorted((folder / "checkpoints").glob("[0-9]*"))[-1]
    return sum(h5py.File(path, "r")["residual"][:].astype(np.float64) for path in newest.glob("rank-*.h5"))


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_stopped_run_is_taken_up_by_as_many_ranks_or_others(
    launch: Callable[..., Any], tmp_path: Path, ranks: int
) -> None:
    """A signal ends all within seconds, drained; every sample is trained on once an epoch all the same."""
    long = (*PEERS, *QUIET, "--set", "training.epochs=100000", "--set", "run.checkpoint_every=0.003", "--out", "run")
    command = [str(Path(sys.executable).with_name("mpirun")), "-n", "3", sys.executable, "-m", "mpitrain", *long]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    log, deadline = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 60
    while not (log.exists() and log.read_text().count('"checkpoint"') >= 1):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    try:
        _, err = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail("still running after 15 s")
    stopped = summary(tmp_path / "run")
    assert process.returncode != 0 and "Traceback" not in err and stopped["exit_reason"] == "stopped"
    assert stopped["replicas_identical"] is True and np.abs(held(tmp_path / "run")).max() > 0
    more = stopped["samples"] // 1438 + 5  # more than the fastest rank has come to
    ended = launch(ranks, "--resume", "run", *QUIET, "--set", f"training.epochs={more}")
    assert ended.status == 0, ended.err
    assert summary(tmp_path / "run")["samples"] == more * 1438


FAULTS = {
    # what rank 1 does, once its 30th message is due; whom the error line names: a regular expression
    "stops reading": ("time.sleep(120)", r" for .*\branks? .*\b1\b"),
    "flips a bit of a message": ("message[40] ^= 1", "message from rank 1: checksum differs"),
    "sends a message twice": ("self.sequences[self.rank] -= 1; message = plain(self, *a)", "from rank 1"),
    "loses a count": ("self.counts[5] += 1", "the replica of rank 1 has diverged"),
}

PROGRAM = """
import sys, time
from mpitrain.__main__ import main
from mpitrain.mpi import MPI
from mpitrain.protocols.peers.replica import Replica
plain = Replica.write
def write(self, *a):
    message = plain(self, *a)
    if self.rank == 1 and self.sequences[1] == 30:
        {}
    return message
Replica.write = write
sys.exit(main())
"""


@pytest.mark.parametrize("synchronous", ["false", "true"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_clear_line_and_no_hang(
    launch: Callable[..., Any], tmp_path: Path, fault: str, synchronous: str
) -> None:
    """Status 1, the rank named, no traceback."""
    action, words = FAULTS[fault]
    (tmp_path / "fault.py").write_text(PROGRAM.format(action))
    seconds = 15 if fault == "stops reading" else 60
    settings = (*PEERS, *QUIET, "--set", f"run.deadline={seconds}", "--set", "algorithm.check_every=0.001")
    mode = ("--set", f"algorithm.synchronous={synchronous}", "--set", "training.epochs=1000")
    ended = launch(3, *settings, *mode, program=("fault.py",))
    assert ended.status == 1 and re.search(words, ended.err) and "Traceback" not in ended.err, ended.err


def test_a_rank_started_with_another_network_is_named(launch: Callable[..., Any], tmp_path: Path) -> None:
    """Its data, or its program, differ from the others'."""
    (tmp_path / "other.py").write_text(
        "import sys\nfrom mpitrain.models import presets\nfrom mpitrain.mpi import MPI\n"
        "from mpitrain.__main__ import main\n"
        "plain = presets.design\n"
        "presets.design = lambda *a, **k: plain(*a, **{**k, 'width': 1.0 + (MPI.COMM_WORLD.rank == 2)})\n"
        "sys.exit(main())\n"
    )
    ended = launch(3, *PEERS, program=("other.py",), deadline=60)
    assert ended.status == 1 and "rank 2 has" in ended.err and "another network" in ended.err


def test_steps_too_small_for_the_unit_are_bad_input(simulated: Callable[..., Any]) -> None:
    """n = 0, found before anything starts."""
    ended = simulated(2, *PEERS, "--set", "training.learning_rate=1e-9")
    assert ended.status == 2 and "algorithm.threshold" in ended.err and "Traceback" not in ended.err


def test_another_algorithms_run_is_taken_up(simulated: Callable[..., Any], tmp_path: Path) -> None:
    """Its weights are rounded to whole units; its ranks' own pieces are not ours."""
    assert simulated(3, "--set", "algorithm.name=easgd", "--set", "training.epochs=1", "--out", "run").status == 0
    ended = simulated(2, "--resume", "run", *PEERS, "--set", "training.epochs=3")
    assert ended.status == 0, ended.err
    assert summary(tmp_path / "run")["replicas_identical"] is True


@pytest.mark.parametrize(("adapted", "first"), [("", 1.0), ("algorithm.target_density=0.01", 2.0)])
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_resumed_run_has_the_threshold_that_it_is_given(
    simulated: Callable[..., Any], tmp_path: Path, ranks: int, adapted: str, first: float
) -> None:
    """Not the one of the checkpoint, be it fixed or adapted to a density that is not aimed at any more."""
    keys = [word for key in filter(None, (f"algorithm.threshold={first}", adapted)) for word in ("--set", key)]
    assert simulated(2, *PEERS, *QUIET, *keys, "--set", "training.epochs=1", "--out", "run").status == 0
    now = ("--set", "algorithm.target_density=0", "--set", "algorithm.threshold=0.5")
    assert simulated(ranks, "--resume", "run", *now, "--set", "training.epochs=2").status == 0
    assert summary(tmp_path / "run")["threshold"] == 0.5


@pytest.mark.usefixtures("no_gpu")
def test_what_is_left_of_a_training_keeps_its_place_beside_a_rank_without_a_turn(
    simulated: Callable[..., Any], tmp_path: Path
) -> None:
    """The third rank never has one. The place says which stage and learning rate the rest is trained with."""
    keys = ("training.epochs=2", "run.checkpoint_samples=700", "run.checkpoints_kept=9", "stages=[{at=0, workers=2}]")
    words = [word for key in keys for word in ("--set", key)]
    assert simulated(3, *PEERS, *words, "--out", "run").status == 0
    for path in sorted((tmp_path / "run" / "checkpoints").glob("[0-9]*")):
        with h5py.File(path / "state.h5") as file:
            told = json.loads(file.attrs["numbers"])
        assert told["trained"] <= told["position"] < told["trained"] + 200, path
