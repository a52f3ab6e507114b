"""Every way to start the ranks that this MPI and this Slurm have: a warning is passed on, a cancellation leaves a
checkpoint. The test command runs this file beside each MPI implementation."""

import sys
from pathlib import Path

import pytest

from mpitrain import checkpoint

from .cluster import Cluster, small, until

LONG = small(training_epochs=100000, run_evaluate_every=0)


@pytest.fixture(params=["found", "mpirun"])
def launcher(request: pytest.FixtureRequest) -> str:
    """What LAUNCHER is set to: nothing, for the job to find `srun` with what it speaks; `mpirun`."""
    if request.param == "mpirun" and not Path(sys.executable).with_name("mpirun").exists():
        pytest.skip("this environment has no mpirun of its own")
    return "" if request.param == "found" else str(request.param)


def test_a_job_is_warned_requeued_and_cancelled(cluster: Cluster, launcher: str) -> None:
    """The warning comes to the batch shell, as before a time limit; the cancellation to every process."""
    job = cluster.submit("allreduce", *LONG, options=("--ntasks=2",), LAUNCHER=launcher)
    job.started(1).signal("--batch", "--signal=USR1")
    job.requeued(1).started(2)
    assert "python -m mpitrain launch -n 2 --launch" in job.log
    assert not launcher or f"--launch {launcher} -n {{ranks}}" in job.log
    before = job.summary
    assert before["exit_reason"] == "stopped" and before["ranks"] == 2

    job.signal()
    job.ended("CANCELLED")
    until(lambda: not job.processes(), "the end of all processes", 60)
    found, torn = checkpoint.newest(job.run / "checkpoints")
    assert found is not None and not torn and job.summary["samples"] >= before["samples"]
    assert job.log.count("requeued\n") == 1
