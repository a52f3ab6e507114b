"""A Slurm cluster of one node for the tests of jobs/."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .cluster import Cluster

JOBS = Path(__file__).resolve().parents[2] / "jobs"
SCRIPT = Path(__file__).with_name("slurm.sh")
PATH = f"{os.environ['PATH']}:/usr/sbin"  # where Debian puts daemons


@pytest.fixture(scope="session")
def slurm() -> Iterator[Path]:
    """The configuration file of a Slurm cluster with 8 CPUs, which ends with the tests."""
    missing = [name for name in ("slurmctld", "slurmd", "sbatch", "munged") if not shutil.which(name, path=PATH)]
    if missing:
        pytest.skip(f"no Slurm here: {', '.join(missing)} not found (Debian: slurm-wlm, munge)")
    if os.geteuid() != 0:
        pytest.skip("slurmd wants root")
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    try:
        done = subprocess.run([SCRIPT, "start", folder, "8"], capture_output=True, text=True, timeout=120)
        if done.returncode:
            pytest.skip(f"Slurm does not start here: {done.stderr.strip()[-300:]}")
        yield folder / "slurm.conf"
    finally:
        subprocess.run([SCRIPT, "stop", folder], capture_output=True, timeout=180)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def cluster(slurm: Path, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """The cluster, seen from a folder with jobs/ in it. Root may start Open MPI's mpirun."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "jobs").symlink_to(JOBS)
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    return Cluster(slurm, folder)
