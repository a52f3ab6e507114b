"""A rank or a node that is lost during a job: the job goes on by itself, without going back into the queue."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from mpitrain import checkpoint

from .cluster import Cluster, Job, small, until

#: The first checkpoint comes after a twelfth of it.
TRAINING = small(training_epochs=40, run_evaluate_every=0, run_checkpoint_samples=5000, run_deadline=10)


def saved(job: Job) -> bool:
    """Whether the job has written a checkpoint."""
    return checkpoint.newest(job.run / "checkpoints")[0] is not None


def lose(cluster: Cluster, node: str) -> None:
    """SIGKILL to all processes on a node of this cluster: its daemon, those that watch steps, and what they started."""
    found = set[int]()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(b"\0")
            environment = (folder / "environ").read_bytes().split(b"\0")
            if f"SLURM_CONF={cluster.conf}".encode() not in environment:
                continue
            if words[1:3] == [b"-N", node.encode()]:
                found.add(int(folder.name))
            elif f"SLURMD_NODENAME={node}".encode() in environment:
                parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
                watches = (Path("/proc", parent) / "comm").read_text().startswith("slurmstepd")
                found |= {int(folder.name), *([int(parent)] if watches else [])}
    for number in sorted(found):
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)


@contextmanager
def without(cluster: Cluster, node: str) -> Iterator[None]:
    """Lose a node, which is there again after the context."""
    lose(cluster, node)
    yield
    environment = {**os.environ, "SLURM_CONF": str(cluster.conf), "PATH": f"{os.environ['PATH']}:/usr/sbin"}
    subprocess.run(["slurmd", "-N", node], env=environment, check=True, timeout=30)


def test_a_killed_rank_does_not_end_the_job(cluster: Cluster) -> None:
    """All ranks are started again, in the same job."""
    job = cluster.submit("allreduce", *TRAINING, options=("--ntasks=2",)).started(1)
    until(lambda: saved(job), "a checkpoint")
    rank = min(number for number, line in job.processes().items() if " train " in line and "python" in line.split()[0])
    os.kill(rank, signal.SIGKILL)
    job.ended()
    assert job.log.count(", start ") == 1 and "lost (exit status" in job.log and "requeued" not in job.log
    assert job.summary["exit_reason"] == "finished" and job.summary["restarts"] == 1


def test_a_lost_node_is_left_out(cluster: Cluster) -> None:
    """Its daemons and its ranks end at once; the training goes on with as many ranks as the other node has room for."""
    options = ("--partition=both", "--nodes=2", "--ntasks=4", "--ntasks-per-node=2")
    job = cluster.submit("allreduce", *TRAINING, options=options).started(1)
    until(lambda: saved(job), "a checkpoint")
    if "--launch srun" not in job.log:
        job.signal()
        pytest.skip("the two nodes are one host, on which mpirun starts all ranks")
    here = re.search(r"BatchHost=(\S+)", cluster.command("scontrol", "show", "job", job.number))
    assert here is not None
    (other,) = set(cluster.command("sinfo", "-hNp", "both", "-o", "%N").split()) - {here[1]}
    with without(cluster, other):
        until(lambda: (job.run / "summary.json").exists(), f"the end of the training of {job}", 400)
    job.ended()
    assert "allreduce on 4 ranks (4 workers), 2 nodes" in job.log and "allreduce on 2 ranks (2 workers)" in job.log
    assert f"no answer from {other}: left out; 2 of 4 ranks can be started" in job.log
    assert job.log.count(", start ") == 1 and job.summary["ranks"] == 2 and job.summary["restarts"] >= 1
