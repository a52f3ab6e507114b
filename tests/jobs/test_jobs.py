"""jobs/*.sbatch, submitted as they are on a real Slurm of one node: finished, warned, cut, cancelled, preempted."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mpitrain import checkpoint

from .cluster import Cluster, Job, small, until
from .gate import Gate

ALGORITHMS = ("asgd-zhang2013", "asgd-chan2014", "easgd", "hybrid", "sparse-delta", "allreduce")
LONG = small(training_epochs=100000, run_evaluate_every=0)
#: A short training, with the same bits on any two ranks.
BITS = small(training_epochs=15, run_evaluate_every=5)


@pytest.fixture(scope="module")
def finished(cluster: Cluster) -> Callable[[str], Job]:
    """All training scripts and `prepare`, submitted at once; one of them when it has finished."""
    jobs = {name: cluster.submit(name, *small(), options=("--ntasks=3",)) for name in ALGORITHMS}
    jobs["prepare"] = cluster.submit("prepare", "digits", "shards")
    return lambda name: jobs[name].ended(seconds=420)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_each_training_script_finishes(finished: Callable[[str], Job], name: str) -> None:
    """On three ranks, which it had to find a launcher for."""
    job = finished(name)
    assert job.summary["exit_reason"] == "finished" and job.summary["ranks"] == 3
    assert job.summary["samples"] >= 2 * 1438 and job.summary["test_error"] < 0.9
    assert f"job {job.number}, start 1: " in job.log


def test_prepare_makes_shards(finished: Callable[[str], Job]) -> None:
    """Which `check` passes."""
    shards = finished("prepare").cluster.folder / "shards"
    done = subprocess.run([sys.executable, "-m", "mpitrain", "check", str(shards)], capture_output=True, timeout=60)
    assert done.returncode == 0


def test_prepare_is_not_requeued_at_its_time_limit(cluster: Cluster, tmp_path: Path) -> None:
    """The next start might come no further, and so on for ever."""
    slow = tmp_path / "slow"
    slow.write_text(f"#!/bin/sh\ntouch {tmp_path}/began\nexec sleep 1000\n")
    slow.chmod(0o755)
    job = cluster.submit("prepare", "digits", "cut", CONTAINER=str(slow))
    until((tmp_path / "began").exists, f"the start of {job}")
    cluster.command("scontrol", "update", f"jobid={job.number}", "endtime=now+5")
    job.ended("TIMEOUT", seconds=120)


def test_a_run_cut_twice_ends_with_the_bits_of_an_uninterrupted_one(
    cluster: Cluster, launch: Callable[..., Any], tmp_path: Path
) -> None:
    """By its time limit, which comes to ranks that stand still, so that they are not done before."""
    gate = Gate(tmp_path, times=2, stand_still=True)  # SIGCONT comes with the SIGTERM
    job = cluster.submit("allreduce", *BITS, options=("--ntasks=2", "--signal=B:USR1@1"), **gate.variables)
    for cut in (1, 2):
        until(lambda cut=cut: gate.reached(cut), f"start {cut} of {job}")
        cluster.command("scontrol", "update", f"jobid={job.number}", "endtime=now+5")
        job.requeued(cut, seconds=200)
        cluster.command("scontrol", "update", f"jobid={job.number}", "timelimit=10")
    job.ended()
    assert job.log.count("start ") == 3 and job.summary["exit_reason"] == "finished"
    assert len(re.findall(rf"JOB {job.number} .* DUE TO TIME LIMIT", job.log)) == 2

    assert launch(2, str(cluster.folder / "jobs/configs/allreduce.toml"), *BITS, "--out", "whole").status == 0
    whole = json.loads((tmp_path / "whole" / "summary.json").read_text())
    assert job.summary["parameters_sha256"] == whole["parameters_sha256"]


def test_a_cancelled_job_leaves_no_process_and_a_checkpoint(cluster: Cluster) -> None:
    """It does not requeue itself; another job goes on with its run."""
    job = cluster.submit("easgd", *LONG, options=("--ntasks=3",)).started(1)
    job.signal()
    job.ended("CANCELLED")
    until(lambda: not job.processes(), "the end of all processes", 30)
    found, torn = checkpoint.newest(job.run / "checkpoints")
    assert found is not None and not torn and job.summary["exit_reason"] == "stopped"
    trained = job.summary["samples"]
    assert "cancelled" in job.log and "requeued" not in job.log

    epochs = trained // 1438 + 3  # two workers may have taken samples of the next epochs, too: those are trained on
    again = cluster.submit(
        "easgd", *LONG, "--set", f"training.epochs={epochs}", options=("--ntasks=3",), OUT=f"runs/easgd-{job.number}"
    )
    again.ended()
    assert job.summary["exit_reason"] == "finished" and job.summary["samples"] == epochs * 1438


def test_a_job_that_somebody_requeues_is_not_said_to_be_cancelled(cluster: Cluster) -> None:
    """By `scontrol requeue`, of which the job hears what it hears when it is cancelled."""
    job = cluster.submit("easgd", *LONG, options=("--ntasks=3",)).started(1)
    cluster.command("scontrol", "requeue", job.number)
    job.says(", start 2").signal()
    assert "cancelled\n" not in job.log and "back in the queue" in job.log
    job.ended("CANCELLED")


def test_a_preempted_job_comes_back(cluster: Cluster) -> None:
    """Its ranks get SIGTERM and 30 seconds; they leave sooner, and the job goes back into the queue."""
    job = cluster.submit("asgd-chan2014", *LONG, options=("--ntasks=3",)).started(1)
    cluster.command("sbatch", "--partition=urgent", "--exclusive", "--wrap=sleep 1", "--output=/dev/null")
    job.requeued(1).started(2).signal()
    job.ended("CANCELLED")


def test_a_configuration_of_ones_own_takes_the_place_of_the_scripts(cluster: Cluster) -> None:
    """And its options come after it. A container's words start the ranks, with the Python that is in it: the job does
    not activate the environment beside it."""
    (cluster.folder / "net.toml").write_text("[training]\nminibatch = 7\n[algorithm]\nname = 'allreduce'\n")
    words = ("net.toml", "--set", "training.epochs=1")
    container = f"env PATH={Path(sys.executable).parent}:{os.environ['PATH']}"
    job = cluster.submit("easgd", *words, options=("--ntasks=2",), CONTAINER=container).ended()
    assert job.summary["algorithm"] == "allreduce" and "minibatch = 7\n" in (job.run / "config.toml").read_text()
    assert f"-n 2 {container} python -m mpitrain train net.toml --set training.epochs=1 --continue" in job.log


def test_a_server_without_a_gpu_is_preempted_and_comes_back(cluster: Cluster) -> None:
    """A heterogeneous job: the server on a node that has none, two workers with one each."""
    server = ("--ntasks=1", "--partition=plain", ":", "--time=10", "--cpus-per-task=1")
    options = (*server, "--ntasks=2", "--gpus-per-task=1", "--partition=main")
    job = cluster.submit("easgd", *LONG, options=options).says("3 ranks (a server and 2 workers), 2 nodes")
    cluster.command("sbatch", "--time=1", "--partition=urgent", "--exclusive", "--wrap=sleep 1", "--output=/dev/null")
    until(lambda: job.state() == "PENDING", f"the requeue of {job}")

    def again() -> bool:  # Slurm 22.05 leaves requeued components pending until they are released
        cluster.command("scontrol", "release", job.number)
        return job.log.count("start ") == 2

    until(again, f"start 2 of {job}")
    job.says("; resumed at epoch").signal()
    job.ended("CANCELLED")


def test_killed_ranks_do_not_spoil_the_next_start(cluster: Cluster) -> None:
    """Which has the same job and step numbers: MPICH then found the shared memory that they had left."""
    job = cluster.submit("allreduce", *LONG, options=("--ntasks=2",)).started(1)
    job.kill_ranks()
    job.ended("FAILED")
    cluster.command("scontrol", "requeue", job.number)
    until(lambda: job.log.count("digits-cnn: ") == 2, "the second start")  # anew: there was no checkpoint
    job.signal()
    job.ended("CANCELLED")


def test_an_array_of_comparisons_ends_in_a_report(cluster: Cluster) -> None:
    """Two algorithms with one and two workers: four elements, then the table."""
    words = ("asgd", "allreduce", "--workers", "1,2", "--target-error", "0.5", "--set", "training.epochs=2")
    cluster.submit("compare", *words).ended()
    table = cluster.folder / "runs" / "compare"
    until(lambda: (table / "report.html").exists() and (table / "compare.md").exists(), "the report", 240)
    text = (table / "compare.md").read_text()
    assert "asgd" in text and "allreduce" in text
    runs = [path for path in (table / "runs").iterdir() if (path / "summary.json").exists()]
    assert len(runs) == 4


def test_an_array_of_simulated_comparisons(cluster: Cluster) -> None:
    """Each element is one process, whatever its number of ranks, and is started without a launcher."""
    words = ("allreduce", "--workers", "1,5", "--target-error", "0.5", "--set", "training.epochs=1")
    cluster.submit("compare", *words, "--simulate", "zhang2013", "--out", "runs/simulated").ended()
    table = cluster.folder / "runs" / "simulated" / "compare.json"
    until(table.exists, "the table", 240)
    assert list(json.loads(table.read_text())["runs"].values()) == ["finished", "finished"]


def test_an_element_of_a_comparison_is_warned_and_comes_back(cluster: Cluster, tmp_path: Path) -> None:
    """It goes on from its checkpoint, the other is left alone, and the job of the table waits for both.

    The last of an array, whose own number is that of the array.
    """
    gate = Gate(tmp_path)
    words = ("allreduce", "--workers", "1,2", "--target-error", "0.5", "--out", "runs/warned", *BITS)
    cluster.submit("compare", *words, **gate.variables).ended()
    folder = cluster.folder / "runs" / "warned"
    log = folder / "runs" / "allreduce-w2-s1" / "metrics.jsonl"
    until(gate.reached, "the element's training")
    (array,) = {name.split("_")[0] for name in cluster.command("squeue", "-hro", "%i").split() if "_" in name}
    cluster.command("scancel", "--batch", "--signal=USR1", f"{array}_1")
    until(lambda: (folder / "report.html").exists(), "the report", 240)
    logs = [(cluster.folder / f"compare-{array}-{element}.out").read_text() for element in (0, 1)]
    assert [text.count(", start ") for text in logs] == [1, 2]
    starts = [event for line in log.read_text().splitlines() if (event := json.loads(line))["event"] == "start"]
    assert [start["resumed"] for start in starts] == [False, True]
    assert json.loads(log.with_name("summary.json").read_text())["exit_reason"] == "finished"
    assert (
        "allreduce" in (folder / "compare.md").read_text() and "unfinished" not in (folder / "compare.md").read_text()
    )
